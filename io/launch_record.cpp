#include "io/launch_record.hpp"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "io/hdf5_handle.hpp"

namespace lockstep {

namespace {

constexpr std::size_t max_hosts_length = 1024;

// "node1 x 4, node2 x 4", cut when there are very many.
std::string hosts_in_words(const std::vector<std::string>& hosts) {
  std::string words;
  for (auto at = hosts.begin(); at != hosts.end();) {
    const auto end = std::find_if(at, hosts.end(), [&](const std::string& host) { return host != *at; });
    const std::string item = text(words.empty() ? "" : ", ", *at, " x ", end - at);
    if (words.size() + item.size() > max_hosts_length) return words + text(", and ", hosts.end() - at, " ranks more");
    words += item;
    at = end;
  }
  return words;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> buffer = {};
  std::strftime(buffer.data(), buffer.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return buffer.data();
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name = {};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> name = {};
  int length = 0;
  MPI_Get_library_version(name.data(), &length);
  const std::string whole(name.data());
  return whole.substr(0, whole.find_first_of(",\n"));
}

LaunchRecord record_of_this_launch(Communicator& communicator, const std::string& versions) {
  LaunchRecord record;
  record.started = broadcast_text(communicator, utc_now());
  record.num_ranks = communicator.num_ranks();
  record.hosts = hosts_in_words(gather_texts(communicator, host_name()));
  record.versions =
      broadcast_text(communicator, text(versions, versions.empty() ? "" : ", ", hdf5_version(), ", ", mpi_version()));
  return record;
}

bool is_on_one_node(Communicator& communicator) {
  const std::vector<std::string> hosts = gather_texts(communicator, host_name());
  return std::all_of(hosts.begin(), hosts.end(), [&](const std::string& host) { return host == hosts.front(); });
}

}  // namespace lockstep
