#pragma once

#include <string>

#include "io/hdf5_handle.hpp"
#include "runtime/plan/attributes.hpp"

namespace lockstep {

/// Writes the facts of one subject into an open group: each an attribute of a plain type (64-bit integer, 64-bit
/// float, UTF-8 text, or a list of those). A list too long for an attribute becomes a dataset of the group, under
/// its escaped name. Throws Error for a text that holds a zero byte.
void write_attribute_group(hid_t group, const AttributeGroup& values);

/// One attribute of an object.
void write_attribute(hid_t object, const std::string& name, const AttributeValue& value);

/// All attributes of an open object. Throws Error when one is of a type that write_attribute() never makes.
AttributeGroup read_attributes(hid_t object);

/// A list that was too long for an attribute.
AttributeValue read_list(hid_t dataset, const std::string& name);

}  // namespace lockstep
