#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/plan/error.hpp"

namespace lockstep {

/// Whether a range's end belongs to it.
enum class RangeEnd { inside, outside };

/// The smallest and the largest value that an option takes.
template <class T>
struct Range {
  T least = std::numeric_limits<T>::lowest();
  T most = std::numeric_limits<T>::max();
  RangeEnd end = RangeEnd::inside;  ///< of `most`
};

/// Whole numbers that count something, from 1 and from 0.
inline constexpr Range<std::int64_t> kPositive{1, std::numeric_limits<std::int64_t>::max()};
inline constexpr Range<std::int64_t> kNotNegative{0, std::numeric_limits<std::int64_t>::max()};

/// Reads a whole number in decimal digits: no exponent, no octal or hexadecimal, no value out of `range`.
/// Throws CLI::ValidationError, which names `option`.
std::int64_t parse_count(const std::string& option, const std::string& value, Range<std::int64_t> range);

/// Reads a finite number within `range`. Throws CLI::ValidationError, which names `option`.
double parse_real(const std::string& option, const std::string& value, Range<double> range);

/// What is common to all programs: wrapped help, --help, --version and --config, a file in which an unknown name is a
/// mistake. Call it first.
void prepare_command_line(CLI::App& app);

/// Parses the arguments; an option that is given twice has its last value. Returns the exit code when the program is
/// to end now: 0 after --help and --version, which are printed; 2 after a mistake, which is told on standard error;
/// of several ranks one should be the speaker. Needs no launcher: call it before MPI_Init.
std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv, bool is_speaker = true);

/// The names in the configuration file that are no options of `app` but nearly spelt like one, a sentence each: for a
/// program that passes over the names of others. Call it after the parse.
std::vector<std::string> misspelt_in_configuration(const CLI::App& app);

/// Standard output took less than what was printed; exit code 1.
class StandardOutputFailed : public Error {
 public:
  StandardOutputFailed();
};

/// What was printed has left the program. Throws StandardOutputFailed.
void finish_standard_output();

/// The whole of a main() without MPI, or with it inside `run`: the exit code that `run` gives, or that of the error
/// it throws, which is told on standard error after the program's `name`.
int run_program(const char* name, int argc, char** argv, int (*run)(int argc, char** argv));

/// From now on an exception that nobody can catch is told in one line and ends the process with exit code 1 (failed)
/// instead of an abort: LibTorch's destructors throw when they give memory back to a device that has failed.
/// run_program() calls it. `name` must live as long as the process.
void tell_what_nobody_catches(const char* name);

/// An option that takes a whole number. `Target` is an integer or an optional one and must outlive the parse; so
/// for the functions below.
template <class Target>
CLI::Option* add_count(CLI::App& app, const std::string& name, Target& target, Range<std::int64_t> range,
                       const std::string& help) {
  return app
      .add_option_function<std::string>(
          name,
          [&target, name, range](const std::string& value) {
            target = static_cast<Target>(parse_count(name, value, range));
          },
          help)
      ->type_name("N");
}

/// An option that takes a finite number.
template <class Target>
CLI::Option* add_real(CLI::App& app, const std::string& name, Target& target, Range<double> range,
                      const std::string& help) {
  return app
      .add_option_function<std::string>(
          name, [&target, name, range](const std::string& value) { target = parse_real(name, value, range); }, help)
      ->type_name("X");
}

/// An option that takes several whole numbers, separated by commas.
CLI::Option* add_counts(CLI::App& app, const std::string& name, std::vector<std::int64_t>& target,
                        Range<std::int64_t> range, const std::string& help);

/// An option that takes several finite numbers, separated by commas.
CLI::Option* add_reals(CLI::App& app, const std::string& name, std::vector<double>& target, Range<double> range,
                       const std::string& help);

/// An option that takes one of `choices`: `parse` turns a name into its choice or throws Error(usage), name_of()
/// gives the names that are listed behind `help`.
template <class Choice, class Target>
CLI::Option* add_choice(CLI::App& app, const std::string& name, Target& target, Choice (*parse)(std::string_view),
                        const std::vector<Choice>& choices, const std::string& help) {
  std::string names;
  for (const Choice choice : choices) names += text(names.empty() ? "" : ", ", name_of(choice));
  const auto choose = [&target, name, parse, choices, names](const std::string& value) {
    target = parse(value);
    if (std::find(choices.begin(), choices.end(), target) == choices.end()) {
      throw CLI::ValidationError(name, text("'", value, "' is not for the command line: take one of ", names));
    }
  };
  return app.add_option_function<std::string>(name, choose, text(help, ". One of: ", names))->type_name("NAME");
}

}  // namespace lockstep
