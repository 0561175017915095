#include "runtime/plan/communicator.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <thread>

#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

/// Every rank's number, in rank order.
std::vector<std::int64_t> gather_numbers(Communicator& communicator, std::int64_t mine) {
  const auto num_ranks = static_cast<std::size_t>(communicator.num_ranks());
  std::vector<std::int64_t> numbers(num_ranks);
  const std::vector<std::size_t> counts(num_ranks, sizeof mine);
  communicator.all_gather(std::as_bytes(std::span(&mine, 1)), counts, std::as_writable_bytes(std::span(numbers)));
  return numbers;
}

/// The graver of two failures decides the exit code: one that a retry cannot cure wins over one that it may.
int gravity(ErrorKind kind) {
  constexpr std::array ascending = {ErrorKind::interrupted, ErrorKind::failed, ErrorKind::usage,
                                    ErrorKind::do_not_requeue};
  return static_cast<int>(std::find(ascending.begin(), ascending.end(), kind) - ascending.begin());
}

struct Failure {
  bool happened = false;
  ErrorKind kind = ErrorKind::failed;
  std::string message;
};

Failure run(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (const Error& error) {
    return {true, error.kind(), error.what()};
  } catch (const std::exception& error) {
    return {true, ErrorKind::failed, error.what()};
  } catch (...) {
    return {true, ErrorKind::failed, "an unknown exception"};
  }
}

}  // namespace

void Communicator::wait_until(const std::function<bool()>& is_done) {
  while (!is_done()) std::this_thread::yield();
}

std::vector<std::string> gather_texts(Communicator& communicator, const std::string& mine) {
  std::vector<std::size_t> counts;
  std::size_t num_characters = 0;
  for (const std::int64_t size : gather_numbers(communicator, static_cast<std::int64_t>(mine.size()))) {
    counts.push_back(static_cast<std::size_t>(size));
    num_characters += counts.back();
  }
  std::string all(num_characters, '\0');
  communicator.all_gather(std::as_bytes(std::span(mine)), counts, std::as_writable_bytes(std::span(all)));
  std::vector<std::string> texts;
  std::size_t begin = 0;
  for (const std::size_t count : counts) {
    texts.push_back(all.substr(begin, count));
    begin += count;
  }
  return texts;
}

std::string broadcast_text(Communicator& communicator, const std::string& mine, int root) {
  auto size = static_cast<std::int64_t>(mine.size());
  communicator.broadcast(std::as_writable_bytes(std::span(&size, 1)), root);
  std::string text = communicator.rank() == root ? mine : std::string(static_cast<std::size_t>(size), '\0');
  communicator.broadcast(std::as_writable_bytes(std::span(text)), root);
  return text;
}

std::string name_ranks(const std::vector<int>& ranks) {
  std::string names = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) names += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return names;
}

void agree(Communicator& communicator, const std::function<void()>& work) {
  const Failure mine = run(work);
  const std::vector<std::int64_t> kinds =
      gather_numbers(communicator, mine.happened ? static_cast<std::int64_t>(mine.kind) : 0);
  if (std::all_of(kinds.begin(), kinds.end(), [](std::int64_t kind) { return kind == 0; })) return;

  // Ranks that failed in the same words are named together: one missing file is one sentence, not a thousand.
  const std::vector<std::string> messages = gather_texts(communicator, mine.message);
  std::vector<std::string> sentences;
  std::vector<std::vector<int>> ranks_of;
  ErrorKind gravest = ErrorKind::interrupted;
  for (std::size_t rank = 0; rank < kinds.size(); ++rank) {
    if (kinds[rank] == 0) continue;
    const auto kind = static_cast<ErrorKind>(kinds[rank]);
    if (gravity(kind) > gravity(gravest)) gravest = kind;
    const auto found = std::find(sentences.begin(), sentences.end(), messages[rank]);
    const auto place = static_cast<std::size_t>(found - sentences.begin());
    if (found == sentences.end()) {
      sentences.push_back(messages[rank]);
      ranks_of.emplace_back();
    }
    ranks_of[place].push_back(static_cast<int>(rank));
  }
  const bool all_alike = sentences.size() == 1 && ranks_of.front().size() == kinds.size();
  std::string joined;
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    joined += (i == 0 ? "" : "; ") + (all_alike ? sentences[i] : name_ranks(ranks_of[i]) + ": " + sentences[i]);
  }
  throw Error(gravest, joined);
}

}  // namespace lockstep
