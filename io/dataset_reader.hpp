#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/dataset_rows.hpp"
#include "io/dataset_type.hpp"
#include "runtime/plan/sample_source.hpp"

namespace lockstep {

/// Data sets of one HDF5 file as samples: the first dimension counts them, one field for each name.
///
/// Any numbers are read, in any byte order (see DatasetType), and nothing is held in memory that need not be: files
/// larger than memory work. A contiguous data set, which h5py and most tools write by default, is read past HDF5 at
/// the speed of memory; a chunked or compressed one in blocks of whole chunks, of which the newest stay in memory.
///
/// Each process opens the file for itself and for reading only: no call is collective, and MPI need not be started.
/// The file must not change while it is open. Where HDF5 is needed after the opening (a field that is chunked or
/// needs conversion; see reads_beside_hdf5()), a read must not run while another thread is in HDF5.
class Hdf5Dataset final : public SampleSource {
 public:
  /// Opens the data sets `names` of the file `path`. Throws Error(usage), naming what the file holds, when one is
  /// missing, not numeric or empty, or when their numbers of samples differ.
  explicit Hdf5Dataset(const std::string& path, const std::vector<std::string>& names = {"images", "labels"},
                       std::size_t cache_bytes = std::size_t{256} << 20);

  std::int64_t num_samples() const override { return num_samples_; }
  const std::vector<FieldInfo>& fields() const override { return fields_; }
  void read(std::size_t field, std::span<const std::int64_t> ids, std::byte* out) override;

  /// True when read() never enters HDF5, and so may run in one thread while another one saves a checkpoint.
  bool reads_beside_hdf5() const;

 private:
  struct Column {
    std::unique_ptr<DatasetRows> rows;
    DatasetType type;
    std::size_t row_elements = 0;
    bool enters_hdf5 = false;
  };

  void add_field(const Hdf5Handle& file, const std::string& name, std::size_t cache_bytes);

  std::string path_;
  std::int64_t num_samples_ = 0;
  std::vector<FieldInfo> fields_;
  std::vector<Column> columns_;
  std::vector<std::byte> scratch_;  // stored elements on their way to native ones
};

}  // namespace lockstep
