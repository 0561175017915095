#include "drivers/metrics_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

/// How each line begins.
constexpr std::string_view line_start = "{\"step\":";

std::string dumped(const Json& object) { return object.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string system_text(int error) { return std::system_category().message(error); }

/// Whether `line` may be the beginning of a line of metrics.
bool may_be_cut(std::string_view line) {
  const std::size_t common = std::min(line.size(), line_start.size());
  return line.substr(0, common) == line_start.substr(0, common);
}

/// Writes all of `bytes`, or says why not: an errno, 0 for success.
int write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : EIO;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

}  // namespace

MetricsFile::MetricsFile(MetricsTarget target) : target_(std::move(target)) {
  target_.run = Json::parse(dumped(target_.run)).get<std::string>();  // as it is read back
  file_ = ::open(target_.file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0)
    throw Error(ErrorKind::usage, text("cannot write ", target_.file, " (", system_text(errno),
                                       "): make its folder, or give another --metrics-file"));
  struct stat facts {};
  is_regular_ = ::fstat(file_, &facts) == 0 && S_ISREG(facts.st_mode);
  try {
    if (is_regular_ && facts.st_size > 0) read_earlier(facts.st_size);
  } catch (...) {
    ::close(file_);
    throw;
  }
}

MetricsFile::~MetricsFile() { ::close(file_); }

void MetricsFile::read_earlier(std::int64_t num_bytes) {
  const auto refuse = [this](const std::string& why) {
    throw Error(ErrorKind::usage,
                text(target_.file, why, ", and is left as it is: give another --metrics-file, or move it away"));
  };
  const auto refuse_line = [&](std::int64_t number) {
    refuse(text(" is no metrics file (line ", number, " is not JSON of a step)"));
  };
  const auto refuse_run = [&](const std::string& other) {
    refuse(text(" holds the metrics of another run", other.empty() ? "" : " (that of " + other + ")"));
  };
  std::ifstream in(target_.file, std::ios::binary);
  if (!in) refuse(text(" holds something already, and cannot be read"));
  if (in.peek() != line_start.front()) refuse_line(1);  // before a line without an end is read
  std::int64_t kept_bytes = 0;
  std::int64_t number = 0;
  bool lost = false;
  bool is_ended = true;
  for (std::string line; std::getline(in, line);) {
    ++number;
    is_ended = !in.eof();
    const Json entry = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!entry.is_object() || !entry.contains("step") || !entry["step"].is_number_integer()) {
      if (is_ended || !may_be_cut(line)) refuse_line(number);
      if (target_.earlier != EarlierLines::own && number == 1) refuse_run("");
      is_ended = true;  // it is cut off
      break;
    }
    const std::string run = entry.contains("run") && entry["run"].is_string() ? entry["run"].get<std::string>() : "";
    if (target_.earlier == EarlierLines::foreign) refuse_run(run);
    if (target_.earlier == EarlierLines::marked && run != target_.run) refuse_run(run);
    const bool is_step = entry.contains("lr");
    if (entry["step"].get<std::int64_t>() > target_.steps_taken) {
      lost = true;
      if (is_step) ++num_dropped_;
      continue;
    }
    if (lost) refuse(text(" is not one run's (its steps go back in line ", number, ")"));
    kept_bytes += static_cast<std::int64_t>(line.size()) + (is_ended ? 1 : 0);
    if (is_step && entry.contains("seconds") && entry["seconds"].is_number())
      kept_seconds_ += entry["seconds"].get<double>();
  }
  // Cut in place: nothing is copied, and no room is needed.
  if (kept_bytes != num_bytes && ::ftruncate(file_, kept_bytes) != 0)
    throw Error(ErrorKind::failed, text("the lines of lost steps cannot be removed from ", target_.file, " (",
                                        system_text(errno), "): give another --metrics-file"));
  if (!is_ended && !lost) write_all(file_, "\n");
}

std::optional<std::string> MetricsFile::append(Json line) {
  if (!target_.run.empty()) line["run"] = target_.run;
  struct stat before {};
  const bool can_cut = is_regular_ && ::fstat(file_, &before) == 0;
  if (const int error = write_all(file_, dumped(line) + '\n')) {
    // A part of a line would make the file none of JSON lines.
    const bool is_cut = can_cut && ::ftruncate(file_, before.st_size) == 0;
    if (num_missing_++ > 0) return std::nullopt;
    return text(target_.file, " cannot be written (", system_text(error),
                "): the run goes on, its lines are missing ", "until there is room again",
                is_cut || !is_regular_ ? "" : ", and the last one may be cut");
  }
  if (num_missing_ == 0) return std::nullopt;
  return text(target_.file, " is written again: ", std::exchange(num_missing_, 0), " lines are missing");
}

}  // namespace lockstep
