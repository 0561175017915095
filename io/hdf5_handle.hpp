#pragma once

#include <hdf5.h>

#include <string>
#include <utility>

namespace lockstep {

/// One HDF5 identifier (file, group, dataset, type, space, property list, attribute), closed when it goes.
///
/// Move-only; valid after the constructor. Every HDF5 call of this project goes through Hdf5Handle or check_hdf5():
/// a failed call throws Error with `what` ("cannot create dataset '/weights/w' in 'run/step-1.h5'") and, in
/// brackets, what HDF5 itself says. HDF5 never prints.
///
/// HDF5 is not thread-safe here: all handles of a process belong to its main thread.
class Hdf5Handle {
 public:
  Hdf5Handle() = default;  ///< empty: get() is H5I_INVALID_HID

  /// Takes the result of an H5*create, H5*open or H5*get call. Throws Error when it is negative.
  Hdf5Handle(hid_t id, const std::string& what);

  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept;
  Hdf5Handle(const Hdf5Handle&) = delete;
  Hdf5Handle& operator=(const Hdf5Handle&) = delete;
  ~Hdf5Handle();

  hid_t get() const { return id_; }

  /// Closes now and throws Error when that fails: closing a written file writes.
  void close(const std::string& what);

 private:
  hid_t id_ = H5I_INVALID_HID;
};

/// Turns HDF5's own printing off. Call it before the first HDF5 call of a unit; calling again costs nothing.
void silence_hdf5();

/// Throws Error(what, HDF5's words) when the result of an HDF5 call is negative; hands it on otherwise.
template <class Result>
Result check_hdf5(Result result, const std::string& what);

/// What HDF5 says about its last failed call, innermost reason last, in one line; clears it.
std::string hdf5_failure();

/// Opens an existing file for reading, on this rank alone. The Error tells apart: no such file, no permission,
/// a lock that somebody holds (naming HDF5_USE_FILE_LOCKING), and a file that is no HDF5 file.
Hdf5Handle open_hdf5_file(const std::string& path);

/// Takes the lock that HDF5 would take, until the descriptor is closed, and throws Error as open_hdf5_file() does
/// where another program has the file open for writing. Newer HDF5 marks such a file in its first bytes, which is no
/// damage. Where there are no locks, or HDF5_USE_FILE_LOCKING turns them off, nothing happens.
void refuse_open_for_writing(const std::string& path, int descriptor);

/// "HDF5 1.10.8": the library this program runs with.
std::string hdf5_version();

}  // namespace lockstep
