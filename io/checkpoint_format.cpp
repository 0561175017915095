#include "io/checkpoint_format.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <span>
#include <vector>

#include "io/digest.hpp"

namespace lockstep {

namespace {

constexpr std::string_view first_line = "lockstep-checkpoint\n";
constexpr std::string_view digest_key = "header-digest: ";

std::uint64_t digest_of_text(std::string_view text) {
  return digest_of(std::as_bytes(std::span(text.data(), text.size())));
}

using HeaderLines = std::map<std::string, std::string, std::less<>>;

HeaderLines lines_of(std::string_view body) {
  HeaderLines lines;
  while (!body.empty()) {
    const std::size_t end = std::min(body.find('\n'), body.size());
    const std::string_view line = body.substr(0, end);
    const std::size_t colon = line.find(": ");
    if (colon != std::string_view::npos) lines.emplace(line.substr(0, colon), line.substr(colon + 2));
    body.remove_prefix(std::min(end + 1, body.size()));
  }
  return lines;
}

std::uint64_t number_of(const HeaderLines& lines, std::string_view key, const std::string& path, int base = 10) {
  const auto found = lines.find(key);
  std::uint64_t value = 0;
  if (found != lines.end()) {
    const std::string& digits = found->second;
    const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (failure == std::errc() && end == digits.data() + digits.size()) return value;
  }
  throw DamagedCheckpoint(text("'", path, "' has no valid line '", key, "' in its header"));
}

bool needs_escape(std::string_view name, std::size_t i) {
  const char c = name[i];
  return c == '/' || c == '%' || (c == '.' && (name == "." || name == ".."));
}

int hexadecimal_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string encode_header(const CheckpointHeader& header) {
  std::string out = text(
      first_line, "format: ", format_version, "\nstep: ", header.step, "\nfile-bytes: ", header.file_bytes,
      "\ndata-begin: ", header.data_begin, "\ndata-end: ", header.data_end, "\nblocks-begin: ", header.blocks_begin,
      "\nnum-blocks: ", header.num_blocks, "\nmetadata-digest: ", hexadecimal(header.metadata_digest),
      "\nstate-digest: ", hexadecimal(header.state_digest), "\ncomplete: yes\n");
  out += text(digest_key, hexadecimal(digest_of_text(out)), "\n");
  out.resize(header_bytes, '\0');
  return out;
}

CheckpointHeader decode_header(std::string_view bytes, const std::string& path) {
  if (bytes.size() < header_bytes) {
    throw DamagedCheckpoint(text("'", path, "' is cut: ", bytes.size(), " bytes, less than its header"));
  }
  bytes = bytes.substr(0, header_bytes);
  if (bytes.find_first_not_of('\0') == std::string_view::npos) {
    throw DamagedCheckpoint(text("'", path, "' was never finished: its header is empty"));
  }
  const std::size_t digest_line = bytes.rfind(digest_key);
  if (bytes.substr(0, first_line.size()) != first_line || digest_line == std::string_view::npos) {
    throw DamagedCheckpoint(text("'", path, "' does not begin as a Lockstep checkpoint"));
  }
  const std::string_view body = bytes.substr(0, digest_line);
  const std::string_view rest = bytes.substr(digest_line + digest_key.size());
  if (rest.substr(0, 17) != hexadecimal(digest_of_text(body)) + "\n" ||
      rest.find_first_not_of('\0', 17) != std::string_view::npos) {
    throw DamagedCheckpoint(text("'", path, "' has a changed header (its digest differs)"));
  }
  const HeaderLines lines = lines_of(body);
  const std::uint64_t version = number_of(lines, "format", path);
  if (version != static_cast<std::uint64_t>(format_version)) {
    throw Error(ErrorKind::usage,
                text("cannot read '", path, "' (checkpoint format ", version, ", this program knows ", format_version,
                     "): use the Lockstep version that wrote it, or a later one"));
  }
  CheckpointHeader header;
  header.step = static_cast<std::int64_t>(number_of(lines, "step", path));
  header.file_bytes = number_of(lines, "file-bytes", path);
  header.data_begin = number_of(lines, "data-begin", path);
  header.data_end = number_of(lines, "data-end", path);
  header.blocks_begin = number_of(lines, "blocks-begin", path);
  header.num_blocks = number_of(lines, "num-blocks", path);
  header.metadata_digest = number_of(lines, "metadata-digest", path, 16);
  header.state_digest = number_of(lines, "state-digest", path, 16);
  const bool in_order = header_bytes <= header.blocks_begin && header.blocks_begin <= header.file_bytes &&
                        header.num_blocks <= (header.file_bytes - header.blocks_begin) / sizeof(BlockRow) &&
                        header.blocks_end() <= header.data_begin && header.data_begin <= header.data_end &&
                        header.data_end <= header.file_bytes;
  if (!in_order) throw DamagedCheckpoint(text("'", path, "' has a header whose parts lie outside of the file"));
  if (encode_header(header) != bytes) {
    throw DamagedCheckpoint(text("'", path, "' has a header that is written otherwise than Lockstep writes it"));
  }
  return header;
}

std::string checkpoint_file_name(std::int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < 8) digits.insert(0, 8 - digits.size(), '0');
  return "step-" + digits + ".h5";
}

std::optional<std::int64_t> step_of_file_name(std::string_view name) {
  constexpr std::string_view prefix = "step-";
  constexpr std::string_view suffix = ".h5";
  if (name.size() <= prefix.size() + suffix.size() || !name.starts_with(prefix) || !name.ends_with(suffix)) return {};
  const std::string_view digits = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  std::int64_t step = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (failure != std::errc() || end != digits.data() + digits.size() || step < 0) return {};
  return step;
}

std::string escape_name(std::string_view name) {
  static constexpr char digits[] = "0123456789ABCDEF";
  if (name.empty()) return "%";
  if (name.find('\0') != std::string_view::npos) {
    throw Error(ErrorKind::usage, text("the name '", std::string(name.substr(0, name.find('\0'))),
                                       "...' holds a zero byte (HDF5 cannot store it): rename it"));
  }
  std::string link;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (needs_escape(name, i)) {
      const auto value = static_cast<unsigned char>(name[i]);
      link += {'%', digits[value >> 4], digits[value & 15]};
    } else {
      link += name[i];
    }
  }
  return link;
}

std::string unescape_name(std::string_view link) {
  if (link == "%") return "";
  std::string name;
  for (std::size_t i = 0; i < link.size(); ++i) {
    if (link[i] != '%') {
      name += link[i];
      continue;
    }
    const int high = i + 2 < link.size() ? hexadecimal_digit(link[i + 1]) : -1;
    const int low = i + 2 < link.size() ? hexadecimal_digit(link[i + 2]) : -1;
    if (high < 0 || low < 0) throw DamagedCheckpoint(text("the stored name '", std::string(link), "' is malformed"));
    name += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return name;
}

std::string section_path(std::string_view section) {
  std::string path;
  while (true) {
    const std::size_t slash = std::min(section.find('/'), section.size());
    path += '/';
    path += escape_name(section.substr(0, slash));
    if (slash == section.size()) return path;
    section.remove_prefix(slash + 1);
  }
}

std::string section_of_path(std::string_view path) {
  std::string section;
  while (!path.empty()) {
    path.remove_prefix(1);
    const std::size_t slash = std::min(path.find('/'), path.size());
    section += unescape_name(path.substr(0, slash));
    path.remove_prefix(slash);
    if (!path.empty()) section += '/';
  }
  return section;
}

}  // namespace lockstep
