#pragma once
// What programs of tests share. Include it after torch's headers, whose logging has a CHECK of its own.
#include <cstdlib>
#include <string>

#include <torchferry/error.hpp>

#undef CHECK
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

/// Of an archive, from the environment.
inline std::string path(const char* variable) {
  const char* value = std::getenv(variable);
  REQUIRE_MESSAGE(value, variable);
  return value;
}

template <class Work>
tf_status status_of(Work work) {
  try {
    work();
  } catch (const torchferry::Error& error) {
    return error.status();
  }
  return TF_OK;
}
