// Turns Fashion-MNIST (70,000 images of 28 x 28 pixels in ten classes; Zalando Research, MIT licence), as Debian's
// package dataset-fashion-mnist brings it, into train.h5 and test.h5: "images" and "labels", as the trainer reads
// them. A file that is there already is kept when it holds the same, and never replaced silently when it does not.

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <system_error>
#include <vector>

#include "drivers/command_line.hpp"
#include "io/hdf5_handle.hpp"
#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string source = "/usr/share/datasets/fashion-mnist";
  std::string out = ".";
  std::int64_t limit = std::numeric_limits<std::int64_t>::max();
  bool overwrite = false;
};

/// An array of bytes, as an IDX file holds one.
struct ByteArray {
  std::vector<std::int64_t> extents;
  std::vector<std::uint8_t> bytes;
};

/// A gzip-compressed IDX file: two zero bytes, the type, the number of dimensions, their extents (big-endian, 32
/// bits), the values.
class IdxFile {
 public:
  explicit IdxFile(const fs::path& path) : path_(path), file_(::gzopen(path.c_str(), "rb"), ::gzclose) {
    if (!file_) {
      throw Error(ErrorKind::usage, text("cannot open ", path_, " (", std::generic_category().message(errno),
                                         "): install the package dataset-fashion-mnist, or name the folder that "
                                         "holds its .gz files"));
    }
  }

  /// The first `limit` values of the first dimension.
  ByteArray read(std::size_t num_dimensions, std::int64_t limit) {
    constexpr std::uint32_t unsigned_bytes = 0x08;
    if (read_number() != (unsigned_bytes << 8 | num_dimensions)) {
      throw Error(ErrorKind::usage, text(path_, " is not an IDX file of bytes in ", num_dimensions,
                                         " dimensions (its first four bytes say something else): fetch it again"));
    }
    ByteArray array;
    for (std::size_t i = 0; i < num_dimensions; ++i) array.extents.push_back(read_number());
    const std::int64_t stored = array.extents.front();
    array.extents.front() = std::min(stored, limit);
    std::size_t num_bytes = 1;
    for (const std::int64_t extent : array.extents) num_bytes *= static_cast<std::size_t>(extent);
    array.bytes.resize(num_bytes);
    read_bytes(array.bytes.data(), num_bytes);
    std::uint8_t beyond = 0;  // trying to read it makes zlib compare the checksum
    if (array.extents.front() == stored && ::gzread(file_.get(), &beyond, 1) > 0) {
      throw Error(ErrorKind::usage, text(path_, " holds more than its header says: fetch it again"));
    }
    require_sound();
    return array;
  }

 private:
  std::uint32_t read_number() {
    std::array<std::uint8_t, 4> bytes{};
    read_bytes(bytes.data(), bytes.size());
    return std::accumulate(bytes.begin(), bytes.end(), std::uint32_t{0},
                           [](std::uint32_t number, std::uint8_t byte) { return number << 8 | byte; });
  }

  void read_bytes(std::uint8_t* out, std::size_t num_bytes) {
    const bool all = ::gzfread(out, 1, num_bytes, file_.get()) == num_bytes;
    require_sound();
    if (!all) throw Error(ErrorKind::usage, text(path_, " ends too early: fetch it again"));
  }

  void require_sound() const {
    int code = Z_OK;
    const char* reason = ::gzerror(file_.get(), &code);
    if (code == Z_OK) return;
    throw Error(ErrorKind::usage, text(path_, " is damaged (zlib says: ", reason, "): fetch it again"));
  }

  fs::path path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

void write_dataset(const Hdf5Handle& file, const char* name, hid_t file_type, hid_t memory_type,
                   const std::vector<hsize_t>& extents, const void* values) {
  const std::string what = text("cannot write \"", name, "\" (is the disk full?)");
  const Hdf5Handle space(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), what);
  const Hdf5Handle creation(H5Pcreate(H5P_DATASET_CREATE), what);
  H5Pset_obj_track_times(creation.get(), false);  // the same images are the same file
  Hdf5Handle dataset(H5Dcreate2(file.get(), name, file_type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                     what);
  check_hdf5(H5Dwrite(dataset.get(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), what);
  dataset.close(what);
}

void write_file(const fs::path& path, const ByteArray& images, const ByteArray& labels) {
  silence_hdf5();
  Hdf5Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT),
                  text("cannot create ", path, ": choose a folder that you may write to with --out"));
  std::vector<hsize_t> extents(images.extents.begin(), images.extents.end());
  extents.insert(extents.begin() + 1, 1);  // one channel
  write_dataset(file, "images", H5T_STD_U8LE, H5T_NATIVE_UINT8, extents, images.bytes.data());
  write_dataset(file, "labels", H5T_STD_I64LE, H5T_NATIVE_UINT8, {extents.front()}, labels.bytes.data());
  file.close(text("cannot write ", path, ": free space on the disk, then start again"));
}

bool same_bytes(const fs::path& a, const fs::path& b) {
  if (fs::file_size(a) != fs::file_size(b)) return false;
  std::ifstream left(a, std::ios::binary);
  std::ifstream right(b, std::ios::binary);
  return std::equal(std::istreambuf_iterator<char>(left), {}, std::istreambuf_iterator<char>(right));
}

/// Imports one of the two sets; `prefix` is how its files' names begin.
void import_set(const Options& options, const std::string& prefix, const std::string& file_name) {
  const fs::path source = options.source;
  const ByteArray images = IdxFile(source / (prefix + "-images-idx3-ubyte.gz")).read(3, options.limit);
  const ByteArray labels = IdxFile(source / (prefix + "-labels-idx1-ubyte.gz")).read(1, options.limit);
  const std::int64_t num_samples = images.extents.front();
  if (num_samples != labels.extents.front()) {
    throw Error(ErrorKind::usage,
                text("the folder ", source, " holds ", num_samples, " images and ", labels.extents.front(),
                     " labels of \"", prefix, "\" (they do not belong together): fetch the data set again"));
  }
  const fs::path target = fs::path(options.out) / file_name;
  const fs::path temporary = fs::path(options.out) / text("tmp-", ::getpid(), "-", file_name);
  const std::string what =
      text(num_samples, " images of ", images.extents[1], " x ", images.extents[2], " pixels with labels");
  try {
    write_file(temporary, images, labels);
    if (fs::exists(target) && same_bytes(temporary, target)) {
      fs::remove(temporary);
      std::cout << target.string() << " is there already: " << what << "\n";
      return;
    }
    if (fs::exists(target) && !options.overwrite) {
      throw Error(ErrorKind::usage, text(target,
                                         " exists and holds something else: choose another folder with --out, "
                                         "or replace it with --overwrite"));
    }
    fs::rename(temporary, target);
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
  std::cout << target.string() << ": " << what << "\n";
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Writes Fashion-MNIST to train.h5 (60000 images) and test.h5 (10000 images).", "import-fashion-mnist");
  prepare_command_line(app);
  app.set_config();  // there is nothing to configure
  app.add_option("folder", options.source, "Where the .gz files of the data set are")->capture_default_str();
  app.add_option("--out", options.out, "Folder for train.h5 and test.h5; made when missing")->capture_default_str();
  add_count(app, "--limit", options.limit, kPositive, "Take only the first N images of each set");
  app.add_flag("--overwrite", options.overwrite, "Replace files that hold something else");
  if (const std::optional<int> code = parse_command_line(app, argc, argv)) return *code;
  fs::create_directories(options.out);
  import_set(options, "train", "train.h5");
  import_set(options, "t10k", "test.h5");
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::run_program("import-fashion-mnist", argc, argv, lockstep::run); }
