#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "runtime/plan/error.hpp"

namespace lockstep {

/// A named fact of a run, of a type that every tool prints: flags are 0 or 1, choices are their names.
using AttributeValue = std::variant<std::int64_t, double, std::string, std::vector<std::int64_t>, std::vector<double>,
                                    std::vector<std::string>>;

/// The facts of one subject: "epoch" -> 3, "consumed_samples" -> 1240, ...
using AttributeGroup = std::map<std::string, AttributeValue>;

/// All facts of a run by subject: "progress", "plan", "schedule", "loss_scaler", "options", ...
/// A checkpoint stores each subject as a group with plain attributes.
using AttributeTree = std::map<std::string, AttributeGroup>;

/// True when `tree` holds `group`/`name`.
inline bool has_attribute(const AttributeTree& tree, const std::string& group, const std::string& name) {
  const auto found = tree.find(group);
  return found != tree.end() && found->second.count(name) != 0;
}

/// The value of `group`/`name`. Throws Error when it is absent or of another type (a damaged or foreign file).
template <class T>
const T& attribute(const AttributeTree& tree, const std::string& group, const std::string& name) {
  const auto found = tree.find(group);
  if (found != tree.end()) {
    const auto value = found->second.find(name);
    if (value != found->second.end()) {
      if (const T* typed = std::get_if<T>(&value->second)) return *typed;
      throw Error(ErrorKind::failed, text("the stored attribute ", group, "/", name,
                                          " has an unexpected type (the file was not written by this program, or "
                                          "by another version of it): take another checkpoint"));
    }
  }
  throw Error(ErrorKind::failed, text("the stored attribute ", group, "/", name,
                                      " is missing (the file was not written by this program, or by another "
                                      "version of it): take another checkpoint"));
}

}  // namespace lockstep
