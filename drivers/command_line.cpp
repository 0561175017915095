#include "drivers/command_line.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <numeric>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "runtime/plan/exact.hpp"

namespace lockstep {
namespace {

const char* name_of_program = "";  // for the handler of tell_what_nobody_catches(), which takes no arguments

constexpr std::size_t kNameColumns = 34;
constexpr std::size_t kHelpColumns = 82;

/// CLI11's help with descriptions broken at words.
class WrappedHelp : public CLI::Formatter {
 public:
  WrappedHelp() { column_width(kNameColumns); }

  std::string make_option_desc(const CLI::Option* option) const override {
    std::istringstream words(option->get_description());
    std::string wrapped;
    std::size_t column = 0;
    for (std::string word; words >> word; column += word.size()) {
      if (column != 0) {
        const bool breaks = column + 1 + word.size() > kHelpColumns;
        wrapped += breaks ? '\n' : ' ';
        column = breaks ? 0 : column + 1;
      }
      wrapped += word;
    }
    return wrapped;
  }
};

/// The whole number that a text like "1e6" or "5.0" means, if any, to propose it.
std::optional<std::int64_t> meant_count(const std::string& value) {
  double real = 0.0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), real);
  if (error != std::errc() || end != value.data() + value.size()) return std::nullopt;
  if (real != std::floor(real) || std::abs(real) > 9e15) return std::nullopt;
  return static_cast<std::int64_t>(real);
}

std::string written(std::int64_t number) { return std::to_string(number); }
std::string written(double number) { return shortest(number); }

template <class T>
std::string range_text(Range<T> range) {
  if (range.most == std::numeric_limits<T>::max()) return "the smallest value is " + written(range.least);
  if (range.least == std::numeric_limits<T>::lowest()) return "the largest value is " + written(range.most);
  return "the values go from " + written(range.least) + (range.end == RangeEnd::outside ? " to below " : " to ") +
         written(range.most);
}

template <class T>
void require_within(const std::string& option, const std::string& value, T number, Range<T> range) {
  if (number < range.least || number > range.most || (range.end == RangeEnd::outside && number == range.most)) {
    throw CLI::ValidationError(option, text(value, " is out of range: ", range_text(range)));
  }
}

/// How many letters must be put in, left out or changed to make `a` of `b`.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

/// The option of `app` whose name can be made of `unknown` by the fewest edits, at most `most_edits`; empty: none.
std::string nearest_option(const CLI::App& app, const std::string& unknown, std::size_t most_edits) {
  std::string nearest;
  std::size_t fewest = std::min(most_edits, unknown.size() / 2) + 1;
  for (const CLI::Option* option : app.get_options()) {
    const std::size_t edits = edit_distance(unknown, option->get_name());
    if (edits >= fewest) continue;
    fewest = edits;
    nearest = option->get_name();
  }
  return nearest;
}

/// ": did you mean --max-steps?", where an option's name is near; else how to see them all.
std::string proposal(const CLI::App& app, const std::string& unknown) {
  const std::string nearest = nearest_option(app, unknown, /*most_edits=*/4);
  return nearest.empty() ? text(" (see ", app.get_name(), " --help)") : text(": did you mean ", nearest, "?");
}

/// What is wrong with the command line, in the words of its user.
std::string sentence_of(const CLI::App& app, const CLI::ParseError& mistake) {
  const auto is_option = [](const std::string& word) { return word.rfind("--", 0) == 0; };
  const std::vector<std::string> extras = app.remaining(/*recurse=*/true);
  const auto option = std::find_if(extras.begin(), extras.end(), is_option);
  if (dynamic_cast<const CLI::ExtrasError*>(&mistake) != nullptr && option != extras.end()) {
    const std::string name = option->substr(0, option->find('='));
    return text("there is no option ", name, proposal(app, name));
  }
  return text(mistake.what(), " (see ", app.get_name(), " --help)");
}

}  // namespace

std::int64_t parse_count(const std::string& option, const std::string& value, Range<std::int64_t> range) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error == std::errc::result_out_of_range) {
    throw CLI::ValidationError(option,
                               text(value, " is out of range (it does not fit into 64 bits): ", range_text(range)));
  }
  if (error != std::errc() || end != value.data() + value.size()) {
    const std::optional<std::int64_t> meant = meant_count(value);
    throw CLI::ValidationError(option, text("'", value, "' is not a whole number in digits: write ",
                                            meant ? text(*meant) : std::string("it like 1000000")));
  }
  require_within(option, value, number, range);
  return number;
}

double parse_real(const std::string& option, const std::string& value, Range<double> range) {
  double number = 0.0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error == std::errc::result_out_of_range) {
    throw CLI::ValidationError(
        option, text(value, " is out of range (no 64-bit floating-point number is near): ", "take another value"));
  }
  if (error != std::errc() || end != value.data() + value.size() || !std::isfinite(number)) {
    throw CLI::ValidationError(option, text("'", value, "' is not a finite number: write it like 0.001 or 1e-3"));
  }
  require_within(option, value, number, range);
  return number;
}

void prepare_command_line(CLI::App& app) {
  app.formatter(std::make_shared<WrappedHelp>());
  app.set_help_flag("-h,--help", "Print this help and end");
  app.set_version_flag("--version", text(app.get_name(), " ", LOCKSTEP_VERSION), "Print the version and end");
  app.set_config("--config", "",
                 "Configuration file (TOML or INI) of options by their long names: max-steps = 30. The "
                 "command line wins")
      ->type_name("FILE")
      ->group("General");
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.get_option("--help")->group("General");
  app.get_option("--version")->group("General");
}

std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv, bool is_speaker) {
  std::ostream silence(nullptr);
  std::ostream& out = is_speaker ? std::cout : silence;
  std::ostream& mistakes = is_speaker ? std::cerr : silence;
  for (CLI::Option* option : app.get_options())
    if (option->get_items_expected_max() == 1) option->take_last();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    const int exit_code = app.exit(success, out, mistakes);
    if (!is_speaker || out.flush()) return exit_code;
    mistakes << app.get_name() << ": " << StandardOutputFailed().what() << '\n';
    return StandardOutputFailed().exit_code();
  } catch (const CLI::ParseError& mistake) {
    mistakes << text(app.get_name(), ": ", sentence_of(app, mistake), "\n");
    return static_cast<int>(ErrorKind::usage);
  } catch (const Error& error) {
    mistakes << text(app.get_name(), ": ", error.what(), "\n");
    return error.exit_code();
  }
  return std::nullopt;
}

std::vector<std::string> misspelt_in_configuration(const CLI::App& app) {
  const CLI::Option& file = *app.get_config_ptr();
  std::vector<std::string> sentences;
  if (file.count() == 0) return sentences;
  for (const CLI::ConfigItem& item : app.get_config_formatter()->from_file(file.as<std::string>())) {
    const std::string option = "--" + item.fullname();
    if (app.get_option_no_throw(option) != nullptr) continue;
    const std::string nearest = nearest_option(app, option, /*most_edits=*/2);
    if (!nearest.empty())
      sentences.push_back(text("'", item.fullname(), "' in ", file.as<std::string>(), " is not used: did you mean ",
                               nearest.substr(2), "?"));
  }
  return sentences;
}

StandardOutputFailed::StandardOutputFailed()
    : Error(ErrorKind::failed,
            "what was printed could not be written (standard output is closed, or its disk is full): give it another "
            "target") {}

void finish_standard_output() {
  if (!std::cout.flush()) throw StandardOutputFailed();
}

void tell_what_nobody_catches(const char* name) {
  name_of_program = name;
  std::set_terminate([] {
    std::string what = "an error of unknown kind";
    try {
      if (std::current_exception()) throw;
    } catch (const std::exception& error) {
      what = error.what();
    } catch (...) {
    }
    std::cerr << text(name_of_program,
                      ": ended by an error that nothing could catch: ", what.substr(0, what.find('\n')), "\n");
    std::_Exit(static_cast<int>(ErrorKind::failed));
  });
}

int run_program(const char* name, int argc, char** argv, int (*run)(int argc, char** argv)) {
  tell_what_nobody_catches(name);
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    std::cerr << name << ": " << error.what() << std::endl;
    return error.exit_code();
  } catch (const std::exception& error) {
    std::cerr << name << ": " << error.what() << std::endl;
    return static_cast<int>(ErrorKind::failed);
  }
}

CLI::Option* add_counts(CLI::App& app, const std::string& name, std::vector<std::int64_t>& target,
                        Range<std::int64_t> range, const std::string& help) {
  const auto read = [&target, name, range](const std::vector<std::string>& values) {
    target.clear();
    for (const std::string& value : values) target.push_back(parse_count(name, value, range));
  };
  return app.add_option_function<std::vector<std::string>>(name, read, help)->delimiter(',')->option_text("N,N,...");
}

CLI::Option* add_reals(CLI::App& app, const std::string& name, std::vector<double>& target, Range<double> range,
                       const std::string& help) {
  const auto read = [&target, name, range](const std::vector<std::string>& values) {
    target.clear();
    for (const std::string& value : values) target.push_back(parse_real(name, value, range));
  };
  return app.add_option_function<std::vector<std::string>>(name, read, help)->delimiter(',')->option_text("X,X,...");
}

}  // namespace lockstep
