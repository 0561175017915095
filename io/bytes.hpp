#pragma once

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace lockstep {

/// Puts plain values, texts and lists one after the other, for sending between the ranks of one run.
class ByteWriter {
 public:
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void add(const T& value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void add(std::string_view value) {
    add(value.size());
    bytes_.append(value);
  }
  void add(const std::string& value) { add(std::string_view(value)); }
  template <class T>
  void add(const std::vector<T>& values) {
    add(values.size());
    for (const T& value : values) add(value);
  }

  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Takes them out again, in the same order. Throws std::out_of_range past the end: a bug, both ends are ours.
class ByteReader {
 public:
  /// The bytes must outlive the reader.
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  template <class T>
  T take() {
    if constexpr (std::is_same_v<T, std::string>) {
      return std::string(take_bytes(take<std::size_t>()));
    } else {
      static_assert(std::is_trivially_copyable_v<T>);
      T value;
      std::memcpy(&value, take_bytes(sizeof value).data(), sizeof value);
      return value;
    }
  }
  template <class T>
  std::vector<T> take_list() {
    std::vector<T> values(take<std::size_t>());
    for (T& value : values) value = take<T>();
    return values;
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view take_bytes(std::size_t count) {
    if (count > bytes_.size()) throw std::out_of_range("a message between ranks is too short");
    const std::string_view out = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return out;
  }

  std::string_view bytes_;
};

}  // namespace lockstep
