#include "io/dataset_reader.hpp"

#include <gtest/gtest.h>
#include <hdf5.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "runtime/plan/error.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// A folder of its own for each test, and a hand that writes HDF5 without the code under test.
class DatasetReader : public testing::Test {
 protected:
  void SetUp() override {
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    folder_ = fs::temp_directory_path() / text("lockstep-dataset-", ::getpid());
    fs::create_directories(folder_);
    path_ = (folder_ / "data.h5").string();
    create();
  }
  void TearDown() override { fs::remove_all(folder_); }

  void create(hsize_t userblock_bytes = 0) {
    const hid_t creation = H5Pcreate(H5P_FILE_CREATE);
    H5Pset_userblock(creation, userblock_bytes);
    H5Fclose(H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, creation, H5P_DEFAULT));
    H5Pclose(creation);
  }

  /// `values` are bytes of `memory_type`; null leaves the data set unwritten.
  void put(const std::string& name, hid_t file_type, std::vector<hsize_t> extents, hid_t memory_type,
           const void* values, std::vector<hsize_t> chunk = {}, int deflate = 0) {
    const hid_t file = H5Fopen(path_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    const hid_t space = extents.empty() ? H5Screate(H5S_SCALAR)
                                        : H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr);
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    if (!chunk.empty()) H5Pset_chunk(creation, static_cast<int>(chunk.size()), chunk.data());
    if (deflate > 0) H5Pset_deflate(creation, static_cast<unsigned>(deflate));
    const hid_t links = H5Pcreate(H5P_LINK_CREATE);
    H5Pset_create_intermediate_group(links, 1);
    const hid_t dataset = H5Dcreate2(file, name.c_str(), file_type, space, links, creation, H5P_DEFAULT);
    ASSERT_GE(dataset, 0);
    if (values != nullptr) {
      ASSERT_GE(H5Dwrite(dataset, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), 0);
    }
    H5Dclose(dataset);
    H5Pclose(links);
    H5Pclose(creation);
    H5Sclose(space);
    H5Fclose(file);
  }

  void put_bytes(const std::string& name, std::vector<hsize_t> extents, std::vector<hsize_t> chunk = {},
                 int deflate = 0) {
    put(name, H5T_STD_U8LE, extents, H5T_NATIVE_UINT8, counting(extents).data(), std::move(chunk), deflate);
  }

  static std::vector<std::uint8_t> counting(const std::vector<hsize_t>& extents) {
    std::vector<std::uint8_t> values(
        std::accumulate(extents.begin(), extents.end(), hsize_t{1}, std::multiplies<>()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
    return values;
  }

  template <class T>
  static std::vector<T> read(Hdf5Dataset& data, std::size_t field, const std::vector<std::int64_t>& ids) {
    std::vector<T> values(ids.size() * data.fields()[field].sample_bytes() / sizeof(T));
    data.read(field, ids, reinterpret_cast<std::byte*>(values.data()));
    return values;
  }

  Error error_of(const std::vector<std::string>& names) const {
    try {
      const Hdf5Dataset data(path_, names);
    } catch (const Error& error) {
      return error;
    }
    return Error(ErrorKind::failed, "no error");
  }

  /// The reader refuses, with every one of `words` in its sentence.
  void expect_refused(ErrorKind kind, const std::vector<std::string>& names, const std::vector<std::string>& words) {
    const Error error = error_of(names);
    EXPECT_EQ(error.kind(), kind) << error.what();
    for (const std::string& word : words) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << word << " is not in: " << error.what();
    }
  }

  fs::path folder_;
  std::string path_;
};

TEST_F(DatasetReader, GivesSamplesInTheOrderOfTheirIds) {
  put_bytes("images", {10, 1, 2, 3});
  const std::array<std::int64_t, 10> labels{9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
  put("labels", H5T_STD_I64LE, {10}, H5T_NATIVE_INT64, labels.data());
  Hdf5Dataset data(path_);
  EXPECT_EQ(data.num_samples(), 10);
  ASSERT_EQ(data.fields().size(), 2u);
  EXPECT_EQ(data.fields()[0].name, "images");
  EXPECT_EQ(data.fields()[0].type, ElementType::uint8);
  EXPECT_EQ(data.fields()[0].sample_shape, (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(data.fields()[1].type, ElementType::int64);
  EXPECT_TRUE(data.fields()[1].sample_shape.empty());
  EXPECT_TRUE(data.reads_beside_hdf5());
  const auto all = counting({10, 1, 2, 3});
  const std::vector<std::int64_t> ids{7, 0, 1, 2, 9, 7};
  const auto images = read<std::uint8_t>(data, 0, ids);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    for (std::size_t j = 0; j < 6; ++j) EXPECT_EQ(images[i * 6 + j], all[static_cast<std::size_t>(ids[i]) * 6 + j]);
  }
  EXPECT_EQ(read<std::int64_t>(data, 1, ids), (std::vector<std::int64_t>{2, 9, 8, 7, 0, 2}));
  EXPECT_TRUE(read<std::uint8_t>(data, 0, {}).empty());
}

TEST_F(DatasetReader, IgnoresNoIdOutsideTheSet) {
  put_bytes("images", {4, 2});
  Hdf5Dataset data(path_, {"images"});
  EXPECT_THROW(read<std::uint8_t>(data, 0, {4}), std::out_of_range);
  EXPECT_THROW(read<std::uint8_t>(data, 0, {-1}), std::out_of_range);
}

TEST_F(DatasetReader, GivesTheSameBytesFromEveryStorage) {
  const std::vector<hsize_t> extents{103, 5, 7};
  create(512);  // a user block moves every offset
  put_bytes("plain", extents);
  put_bytes("chunks", extents, {10, 5, 7});
  put_bytes("packed", extents, {13, 2, 3}, 6);
  put_bytes("one_chunk", extents, {103, 5, 7}, 1);
  const auto all = counting(extents);
  std::vector<std::int64_t> ids(300);
  std::mt19937 random(1);
  for (auto& id : ids) id = static_cast<std::int64_t>(random() % 103);
  for (const std::size_t cache_bytes : {std::size_t{1}, std::size_t{2000}, std::size_t{1} << 20}) {
    Hdf5Dataset data(path_, {"plain", "chunks", "packed", "one_chunk"}, cache_bytes);
    EXPECT_FALSE(data.reads_beside_hdf5());
    for (std::size_t field = 0; field < 4; ++field) {
      const auto values = read<std::uint8_t>(data, field, ids);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        ASSERT_EQ(std::memcmp(&values[i * 35], &all[static_cast<std::size_t>(ids[i]) * 35], 35), 0)
            << data.fields()[field].name << ", sample " << ids[i] << ", cache of " << cache_bytes;
      }
    }
  }
}

TEST_F(DatasetReader, ReadsLargeSamplesWithoutAMapping) {
  const std::vector<hsize_t> extents{5, 300, 200};
  put_bytes("images", extents);
  Hdf5Dataset data(path_, {"images"});
  const auto all = counting(extents);
  const auto values = read<std::uint8_t>(data, 0, {3, 4, 0});
  EXPECT_EQ(std::memcmp(values.data(), &all[3 * 60000], 120000), 0);
  EXPECT_EQ(std::memcmp(&values[120000], all.data(), 60000), 0);
}

TEST_F(DatasetReader, ReadsWhatWasNeverWrittenAsItsFillValue) {
  put("images", H5T_STD_I16LE, {4, 3}, H5T_NATIVE_INT16, nullptr);
  put("sparse", H5T_STD_I16LE, {4, 3}, H5T_NATIVE_INT16, nullptr, {2, 3});
  Hdf5Dataset data(path_, {"images", "sparse"});
  EXPECT_EQ(read<std::int16_t>(data, 0, {3, 1}), std::vector<std::int16_t>(6, 0));
  EXPECT_EQ(read<std::int16_t>(data, 1, {3, 1}), std::vector<std::int16_t>(6, 0));
}

/// Stores 0, 1, 100 as `file_type`, expects them as `T` under the name `type`.
template <class T>
void expect_numbers(Hdf5Dataset& data, std::size_t field, ElementType type) {
  EXPECT_EQ(data.fields()[field].type, type) << data.fields()[field].name;
  std::array<T, 3> values{};
  const std::array<std::int64_t, 3> ids{0, 1, 2};
  ASSERT_EQ(data.fields()[field].sample_bytes(), sizeof(T));
  data.read(field, ids, reinterpret_cast<std::byte*>(values.data()));
  EXPECT_EQ(values, (std::array<T, 3>{T(0), T(1), T(100)})) << data.fields()[field].name;
}

TEST_F(DatasetReader, ReadsEveryKindOfNumberInEitherByteOrder) {
  const std::array<int, 3> numbers{0, 1, 100};
  const hid_t int24 = H5Tcopy(H5T_STD_I32BE);
  H5Tset_precision(int24, 24);
  const std::array<hid_t, 20> types{H5T_STD_I8LE,   H5T_STD_U8BE,   H5T_STD_I16LE,      H5T_STD_I16BE,
                                    H5T_STD_U16LE,  H5T_STD_U16BE,  H5T_STD_I32LE,      H5T_STD_I32BE,
                                    H5T_STD_U32LE,  H5T_STD_U32BE,  H5T_STD_I64LE,      H5T_STD_I64BE,
                                    H5T_STD_U64LE,  H5T_STD_U64BE,  H5T_IEEE_F32LE,     H5T_IEEE_F32BE,
                                    H5T_IEEE_F64LE, H5T_IEEE_F64BE, H5T_NATIVE_LDOUBLE, int24};
  std::vector<std::string> names;
  for (const bool chunked : {false, true}) {
    for (std::size_t i = 0; i < types.size(); ++i) {
      names.push_back(text(chunked ? "chunked" : "plain", i));
      put(names.back(), types[i], {3}, H5T_NATIVE_INT, numbers.data(),
          chunked ? std::vector<hsize_t>{2} : std::vector<hsize_t>{});
    }
  }
  H5Tclose(int24);
  Hdf5Dataset data(path_, names);
  for (const std::size_t base : {std::size_t{0}, types.size()}) {
    expect_numbers<std::int8_t>(data, base + 0, ElementType::int8);
    expect_numbers<std::uint8_t>(data, base + 1, ElementType::uint8);
    expect_numbers<std::int16_t>(data, base + 2, ElementType::int16);
    expect_numbers<std::int16_t>(data, base + 3, ElementType::int16);
    expect_numbers<std::int32_t>(data, base + 4, ElementType::int32);
    expect_numbers<std::int32_t>(data, base + 5, ElementType::int32);
    expect_numbers<std::int32_t>(data, base + 6, ElementType::int32);
    expect_numbers<std::int32_t>(data, base + 7, ElementType::int32);
    for (std::size_t i = 8; i < 14; ++i) expect_numbers<std::int64_t>(data, base + i, ElementType::int64);
    expect_numbers<float>(data, base + 14, ElementType::float32);
    expect_numbers<float>(data, base + 15, ElementType::float32);
    for (std::size_t i = 16; i < 19; ++i) expect_numbers<double>(data, base + i, ElementType::float64);
    expect_numbers<std::int32_t>(data, base + 19, ElementType::int32);
  }
}

/// A floating type of 16 bits with `exponent_bits` bits of exponent, in `order`.
hid_t float_of_16_bits(std::size_t exponent_bits, H5T_order_t order) {
  const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
  const std::size_t mantissa_bits = 15 - exponent_bits;
  H5Tset_fields(type, 15, mantissa_bits, exponent_bits, 0, mantissa_bits);
  H5Tset_size(type, 2);
  H5Tset_ebias(type, (std::size_t{1} << (exponent_bits - 1)) - 1);
  H5Tset_order(type, order);
  return type;
}

TEST_F(DatasetReader, KeepsEveryBitOf16BitFloats) {
  std::vector<std::uint16_t> bits(65536);
  std::iota(bits.begin(), bits.end(), std::uint16_t{0});
  std::vector<std::string> names;
  for (const std::size_t exponent_bits : {std::size_t{5}, std::size_t{8}}) {
    for (const H5T_order_t order : {H5T_ORDER_LE, H5T_ORDER_BE}) {
      const hid_t type = float_of_16_bits(exponent_bits, order);
      auto stored = bits;
      if (order == H5T_ORDER_BE) {
        for (auto& b : stored) b = static_cast<std::uint16_t>(b << 8 | b >> 8);
      }
      names.push_back(text("e", exponent_bits, order == H5T_ORDER_BE ? "be" : "le"));
      put(names.back(), type, {65536}, type, stored.data());
      H5Tclose(type);
    }
  }
  Hdf5Dataset data(path_, names);
  std::vector<std::int64_t> ids(65536);
  std::iota(ids.begin(), ids.end(), 0);
  for (std::size_t field = 0; field < names.size(); ++field) {
    EXPECT_EQ(data.fields()[field].type, field < 2 ? ElementType::float16 : ElementType::bfloat16);
    EXPECT_EQ(read<std::uint16_t>(data, field, ids), bits) << names[field];
  }
}

TEST_F(DatasetReader, ReadsBooleansAndOtherEnumerations) {
  const auto make_enumeration = [](std::vector<const char*> members) {
    const hid_t type = H5Tenum_create(H5T_NATIVE_INT8);
    for (std::int8_t value = 0; value < static_cast<std::int8_t>(members.size()); ++value) {
      H5Tenum_insert(type, members[static_cast<std::size_t>(value)], &value);
    }
    return type;
  };
  const hid_t boolean = make_enumeration({"FALSE", "TRUE"});
  const hid_t colour = make_enumeration({"RED", "GREEN", "BLUE"});
  const std::array<std::int8_t, 3> values{0, 1, 2};
  const std::array<std::int8_t, 3> flags{1, 0, 1};
  put("flags", boolean, {3}, boolean, flags.data());
  put("colours", colour, {3}, colour, values.data());
  H5Tclose(boolean);
  H5Tclose(colour);
  Hdf5Dataset data(path_, {"flags", "colours"});
  EXPECT_EQ(data.fields()[0].type, ElementType::boolean);
  EXPECT_EQ(data.fields()[1].type, ElementType::int8);
  EXPECT_EQ(read<std::uint8_t>(data, 0, {0, 1, 2}), (std::vector<std::uint8_t>{1, 0, 1}));
  EXPECT_EQ(read<std::int8_t>(data, 1, {2, 1, 0}), (std::vector<std::int8_t>{2, 1, 0}));
}

TEST_F(DatasetReader, RefusesANumberThatDoesNotFit) {
  const std::array<std::uint64_t, 2> values{7, std::uint64_t{1} << 63};
  put("images", H5T_STD_U64LE, {2}, H5T_NATIVE_UINT64, values.data());
  Hdf5Dataset data(path_, {"images"});
  EXPECT_EQ(read<std::int64_t>(data, 0, {0}), std::vector<std::int64_t>{7});
  try {
    read<std::int64_t>(data, 0, {1});
    ADD_FAILURE() << "2^63 was read as an int64";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("int64"), std::string::npos) << error.what();
  }
}

TEST_F(DatasetReader, NamesWhatTheFileHoldsWhenANameIsWrong) {
  put_bytes("train/pixels", {6, 4});
  put_bytes("classes", {6});
  expect_refused(ErrorKind::usage, {"images", "classes"},
                 {"no data set \"images\"", "\"train/pixels\" uint8 [6, 4]", "\"classes\" uint8 [6]", path_});
  expect_refused(ErrorKind::usage, {"train"}, {"no data set \"train\""});
  EXPECT_EQ(Hdf5Dataset(path_, {"train/pixels", "classes"}).num_samples(), 6);
}

TEST_F(DatasetReader, SaysThatAFileHoldsNoDataSet) {
  expect_refused(ErrorKind::usage, {"images"}, {"no data set at all"});
}

TEST_F(DatasetReader, GivesBothCountsWhenInputsAndTargetsDiffer) {
  put_bytes("images", {7, 4});
  put_bytes("labels", {6});
  expect_refused(ErrorKind::usage, {"images", "labels"}, {"7 samples in \"images\"", "6 in \"labels\""});
}

TEST_F(DatasetReader, RefusesAnEmptySet) {
  put_bytes("images", {0, 4});
  put_bytes("nothing", {4, 0});
  put("scalar", H5T_STD_U8LE, {}, H5T_NATIVE_UINT8, counting({1}).data());
  expect_refused(ErrorKind::usage, {"images"}, {"\"images\"", "[0, 4]"});
  expect_refused(ErrorKind::usage, {"nothing"}, {"\"nothing\"", "[4, 0]"});
  expect_refused(ErrorKind::usage, {"scalar"}, {"\"scalar\"", "single value"});
}

TEST_F(DatasetReader, RefusesWhatIsNotANumber) {
  const hid_t words = H5Tcopy(H5T_C_S1);
  H5Tset_size(words, 4);
  put("words", words, {2}, words, "one two");
  H5Tclose(words);
  const hid_t pair = H5Tcreate(H5T_COMPOUND, 2);
  H5Tinsert(pair, "a", 0, H5T_NATIVE_INT8);
  H5Tinsert(pair, "b", 1, H5T_NATIVE_INT8);
  put("pairs", pair, {2}, pair, "abcd");
  H5Tclose(pair);
  expect_refused(ErrorKind::usage, {"words"}, {"text in \"words\"", "\"pairs\" compound [2]"});
  expect_refused(ErrorKind::usage, {"pairs"}, {"compound in \"pairs\""});
}

TEST_F(DatasetReader, RefusesWhatIsNoHdf5File) {
  std::ofstream(path_, std::ios::trunc) << "not an HDF5 file, though it is called one";
  expect_refused(ErrorKind::usage, {"images"}, {path_, "not an HDF5 file"});
  std::ofstream(path_, std::ios::trunc).flush();
  expect_refused(ErrorKind::usage, {"images"}, {path_, "not an HDF5 file"});
  fs::remove(path_);
  expect_refused(ErrorKind::usage, {"images"}, {path_, "No such file"});
  fs::create_directory(path_);
  expect_refused(ErrorKind::usage, {"images"}, {path_, "folder"});
}

TEST_F(DatasetReader, RefusesAFileCutShort) {
  put_bytes("images", {1000, 8});
  fs::resize_file(path_, fs::file_size(path_) - 100);
  expect_refused(ErrorKind::do_not_requeue, {"images"}, {path_, "cut short"});
}

TEST_F(DatasetReader, NoticesThatAFileIsCutWhileItIsOpen) {
  put_bytes("small", {1000, 8});
  put_bytes("large", {1000, 40000});
  Hdf5Dataset data(path_, {"small", "large"});
  EXPECT_EQ(read<std::uint8_t>(data, 0, {999}).size(), 8u);
  fs::resize_file(path_, 2100);
  EXPECT_THROW(read<std::uint8_t>(data, 0, {999}), Error);
  EXPECT_THROW(read<std::uint8_t>(data, 1, {999}), Error);
}

TEST_F(DatasetReader, SaysWhichSamplesADamagedChunkHolds) {
  put_bytes("images", {100, 64}, {10, 64}, 9);
  {
    const hid_t file = H5Fopen(path_.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    const hid_t dataset = H5Dopen2(file, "images", H5P_DEFAULT);
    const std::array<hsize_t, 2> place{50, 0};
    haddr_t address = 0;
    hsize_t size = 0;
    unsigned mask = 0;
    ASSERT_GE(H5Dget_chunk_info_by_coord(dataset, place.data(), &mask, &address, &size), 0);
    H5Dclose(dataset);
    H5Fclose(file);
    std::fstream bytes(path_, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(address));
    bytes << std::string(size, '\xff');
  }
  Hdf5Dataset data(path_, {"images"});
  EXPECT_EQ(read<std::uint8_t>(data, 0, {49}).size(), 64u);
  try {
    read<std::uint8_t>(data, 0, {51});
    ADD_FAILURE() << "a damaged chunk was read";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("samples 50 to 59"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace lockstep
