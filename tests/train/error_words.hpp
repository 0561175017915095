#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/plan/error.hpp"

namespace lockstep::test {

/// What an Error says; empty when there was none.
template <class Work>
std::string error_of(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline void expect_words(const std::string& message, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
}

}  // namespace lockstep::test
