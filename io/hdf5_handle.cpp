#include "io/hdf5_handle.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "runtime/plan/error.hpp"

namespace lockstep {

namespace {

herr_t append_reason(unsigned /*depth*/, const H5E_error2_t* entry, void* out) {
  auto& reasons = *static_cast<std::string*>(out);
  if (entry->desc != nullptr && *entry->desc != '\0') {
    if (!reasons.empty()) reasons += "; ";
    reasons += entry->desc;
  }
  return 0;
}

[[noreturn]] void throw_failure(const std::string& what) {
  throw Error(ErrorKind::failed, text(what, " (HDF5: ", hdf5_failure(), ")"));
}

std::string lock_refusal(const std::string& path, int number) {
  return text("cannot open '", path, "' (its file lock is refused, errno ", number, ": ", std::strerror(number),
              "; another program has it open for writing, or this file system has no locks): close the other "
              "program, or set HDF5_USE_FILE_LOCKING=FALSE and start again");
}

// Why H5Fopen refused a file that exists and can be read. HDF5 takes a shared lock; taking one ourselves tells
// a lock from a broken file, and gives the error number.
std::string refusal(const std::string& path, int descriptor, const std::string& reasons) {
  if (::flock(descriptor, LOCK_SH | LOCK_NB) != 0 || reasons.find("lock file") != std::string::npos) {
    return text(lock_refusal(path, errno), " (HDF5: ", reasons, ")");
  }
  return text("cannot open '", path, "' (HDF5 does not take it for an HDF5 file: ", reasons,
              "): give an HDF5 file, or a whole copy of this one");
}

}  // namespace

Hdf5Handle::Hdf5Handle(hid_t id, const std::string& what) : id_(id) {
  if (id < 0) throw_failure(what);
}

Hdf5Handle& Hdf5Handle::operator=(Hdf5Handle&& other) noexcept {
  std::swap(id_, other.id_);
  return *this;
}

Hdf5Handle::~Hdf5Handle() {
  if (id_ >= 0) H5Idec_ref(id_);
}

void Hdf5Handle::close(const std::string& what) {
  if (id_ < 0) return;
  if (H5Idec_ref(std::exchange(id_, H5I_INVALID_HID)) < 0) throw_failure(what);
}

void silence_hdf5() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

template <class Result>
Result check_hdf5(Result result, const std::string& what) {
  if (result < 0) throw_failure(what);
  return result;
}

template int check_hdf5(int, const std::string&);
template long check_hdf5(long, const std::string&);
template long long check_hdf5(long long, const std::string&);

std::string hdf5_failure() {
  std::string reasons;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, append_reason, &reasons);
  H5Eclear2(H5E_DEFAULT);
  return reasons.empty() ? "no reason given" : reasons;
}

Hdf5Handle open_hdf5_file(const std::string& path) {
  silence_hdf5();
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    const int number = errno;
    const char* act = number == ENOENT ? "check the name and the folder" : "check the permissions of file and folder";
    throw Error(ErrorKind::usage,
                text("cannot open '", path, "' (errno ", number, ": ", std::strerror(number), "): ", act));
  }
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  if (file < 0) {
    const std::string message = refusal(path, descriptor, hdf5_failure());
    ::close(descriptor);
    throw Error(ErrorKind::failed, message);
  }
  ::close(descriptor);
  return Hdf5Handle(file, path);
}

void refuse_open_for_writing(const std::string& path, int descriptor) {
  const char* const locking = std::getenv("HDF5_USE_FILE_LOCKING");
  if (locking != nullptr && (std::string_view(locking) == "FALSE" || std::string_view(locking) == "0")) return;
  if (::flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw Error(ErrorKind::failed, lock_refusal(path, EWOULDBLOCK));
  }
}

std::string hdf5_version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  H5get_libversion(&major, &minor, &release);
  return text("HDF5 ", major, ".", minor, ".", release);
}

}  // namespace lockstep
