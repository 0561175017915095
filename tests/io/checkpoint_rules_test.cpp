// What checkpoints rest on and one process can tell: names, header, blocks, retention, digests.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "io/checkpoint_catalogue.hpp"
#include "io/checkpoint_format.hpp"
#include "io/digest.hpp"
#include "io/digest_blocks.hpp"
#include "io/retention.hpp"
#include "io/save_fault.hpp"

namespace lockstep {
namespace {

CheckpointHeader made_header() {
  CheckpointHeader header;
  header.step = 123456789012;
  header.file_bytes = 1000000;
  header.blocks_begin = 8192;
  header.num_blocks = 10;
  header.data_begin = 16384;
  header.data_end = 900000;
  header.metadata_digest = 0x0123456789abcdef;
  header.state_digest = 0xfedcba9876543210;
  return header;
}

TEST(CheckpointHeader, ComesBackAsItWasWritten) {
  const std::string bytes = encode_header(made_header());
  ASSERT_EQ(bytes.size(), header_bytes);
  const CheckpointHeader header = decode_header(bytes, "x");
  EXPECT_EQ(header.step, 123456789012);
  EXPECT_EQ(header.file_bytes, 1000000u);
  EXPECT_EQ(header.blocks_end(), 8192u + 320u);
  EXPECT_EQ(header.data_begin, 16384u);
  EXPECT_EQ(header.data_end, 900000u);
  EXPECT_EQ(header.metadata_digest, 0x0123456789abcdefu);
  EXPECT_EQ(header.state_digest, 0xfedcba9876543210u);
}

TEST(CheckpointHeader, IsRefusedWithAnyByteChanged) {
  const std::string bytes = encode_header(made_header());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    EXPECT_THROW(decode_header(changed, "x"), DamagedCheckpoint) << "byte " << i;
  }
}

TEST(CheckpointHeader, TellsAnUnfinishedFileFromALaterFormat) {
  EXPECT_THROW(decode_header(std::string(header_bytes, '\0'), "x"), DamagedCheckpoint);
  EXPECT_THROW(decode_header("", "x"), DamagedCheckpoint);
  std::string body = "lockstep-checkpoint\nformat: 99\nsomething: else\n";
  body += "header-digest: " + hexadecimal(digest_of(std::as_bytes(std::span(body.data(), body.size())))) + "\n";
  body.resize(header_bytes, '\0');
  try {
    decode_header(body, "x");
    FAIL() << "a later format was read";
  } catch (const DamagedCheckpoint&) {
    FAIL() << "a later format was taken for damage";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("format 99"), std::string::npos) << error.what();
  }
}

TEST(CheckpointNames, SortAsNumbersWhateverTheWidth) {
  EXPECT_EQ(checkpoint_file_name(40), "step-00000040.h5");
  EXPECT_EQ(checkpoint_file_name(12345678901), "step-12345678901.h5");
  for (const std::int64_t step : {0L, 9L, 10000L, 99999999L, 100000000L, 12345678901L}) {
    EXPECT_EQ(step_of_file_name(checkpoint_file_name(step)), step);
  }
  for (const char* name : {"step-.h5", "step-4x.h5", "step-40.h5.tmp", "latest", "step-40", "step--4.h5",
                           "step-+4.h5", "step-99999999999999999999.h5"}) {
    EXPECT_EQ(step_of_file_name(name), std::nullopt) << name;
  }
}

TEST(CheckpointNames, AreEscapedWithoutCollisions) {
  std::set<std::string> links;
  const std::vector<std::string> names = {"x",
                                          "x/y",
                                          "a/b",
                                          "a/./b",
                                          "a//b",
                                          ".",
                                          "..",
                                          "...",
                                          "/lead",
                                          "trail/",
                                          "enc.0.weight",
                                          "sp ace",
                                          "gr\xc3\xbc\xc3\x9f"
                                          "e",
                                          "",
                                          "%",
                                          "%2F",
                                          "a%2Fb",
                                          std::string(300, 'n')};
  for (const std::string& name : names) {
    const std::string link = escape_name(name);
    EXPECT_EQ(link.find('/'), std::string::npos);
    EXPECT_EQ(unescape_name(link), name);
    EXPECT_TRUE(links.insert(link).second) << name;
  }
  EXPECT_EQ(escape_name("encoder.layers.0.weight"), "encoder.layers.0.weight");
  EXPECT_THROW(escape_name(std::string("a\0b", 3)), Error);
  for (const char* link : {"%2", "%zz", "a%", "%2f"}) EXPECT_THROW(unescape_name(link), DamagedCheckpoint) << link;
  for (const char* section : {"weights", "optimizer/exp_avg", "a/./b", "a//b", ""}) {
    EXPECT_EQ(section_of_path(section_path(section)), section);
  }
}

TEST(DigestBlocks, AreTheSameForEveryCut) {
  const DigestBlocks blocks(1000, 64, 10);
  EXPECT_EQ(blocks.count(), 17);  // 10 + 15 x 64 + 30
  EXPECT_EQ(blocks.begin(0), 0);
  EXPECT_EQ(blocks.begin(1), 10);
  EXPECT_EQ(blocks.begin(16), 970);
  EXPECT_EQ(blocks.begin(17), 1000);
  for (std::int64_t i = 0; i <= blocks.count(); ++i) EXPECT_EQ(blocks.index_at(blocks.begin(i), "w"), i);
  EXPECT_THROW(blocks.index_at(64, "w"), Error);
  EXPECT_THROW(blocks.index_at(5, "w"), Error);
  EXPECT_THROW(blocks.index_at(1034, "w"), Error);
  EXPECT_EQ(DigestBlocks(0, 64, 10).count(), 0);
  EXPECT_EQ(DigestBlocks(1, 64, 0).count(), 1);
  EXPECT_EQ(DigestBlocks(64, 64, 64).count(), 1);
  EXPECT_EQ(DigestBlocks(5, 64, 10).count(), 1);
  EXPECT_EQ(DigestBlocks(100, 64, -54).count(), 3);  // a phase is taken modulo the block
  EXPECT_THROW(DigestBlocks(1, 0, 0), Error);
}

TEST(Cases, C076RetentionSortsNumbers) {
  std::vector<std::int64_t> steps;
  for (std::int64_t step = 9000; step <= 10000; step += 100) steps.push_back(step);
  EXPECT_EQ(steps_to_remove({10, 0}, steps, 10000), std::vector<std::int64_t>{9000});
  EXPECT_EQ(steps_to_remove({2, 0}, {9, 10, 11}, 11), std::vector<std::int64_t>{9});
}

TEST(Retention, NeverRemovesTheNewestVerifiedOne) {
  EXPECT_EQ(steps_to_remove({1, 0}, {25, 30, 40}, 25), (std::vector<std::int64_t>{30, 40}));
  EXPECT_EQ(steps_to_remove({1, 10}, {5, 10, 15, 20, 25}, 25), (std::vector<std::int64_t>{5, 15}));
  EXPECT_EQ(steps_to_remove({1, 10}, {5, 10, 15, 20}, 20), (std::vector<std::int64_t>{5}));
  EXPECT_TRUE(steps_to_remove({0, 0}, {1, 2, 3}, 3).empty());
  EXPECT_TRUE(steps_to_remove({5, 0}, {}, 3).empty());
}

TEST(Retention, RefusesLimitsThatMakeNoSense) {
  EXPECT_THROW(check_retention({-1, 0}), Error);
  EXPECT_THROW(check_retention({2, -5}), Error);
  EXPECT_THROW(check_retention({0, 5}), Error);
  EXPECT_NO_THROW(check_retention({0, 0}));
  EXPECT_NO_THROW(check_retention({2, 5}));
}

Catalogue made_catalogue() {
  Catalogue catalogue;
  catalogue.header = made_header();
  catalogue.attributes["progress"] = {{"epoch", std::int64_t{1}}, {"rates", std::vector<double>{0.5, 0.25}}};
  catalogue.attributes["options"] = {{"names", std::vector<std::string>{"a", ""}}, {"text", std::string("t")}};
  StoredTensor tensor;
  tensor.info = {"weights", "w", ElementType::float32, {20, 5}};
  tensor.block_elements = 64;
  catalogue.tensors.push_back(tensor);
  catalogue.aliases.push_back({"weights", "tied", "w"});
  catalogue.launches.push_back({"2026-11-30T14:03:00Z", 7, 2, "node x 2", "1.0"});
  catalogue.blocks = cut_into_blocks(catalogue.tensors);
  return catalogue;
}

TEST(Catalogue, TravelsBetweenRanks) {
  const Catalogue sent = made_catalogue();
  const Catalogue received = unpack_catalogue(pack(sent));
  EXPECT_EQ(received.attributes, sent.attributes);
  EXPECT_EQ(received.launches, sent.launches);
  EXPECT_EQ(received.blocks, sent.blocks);
  ASSERT_EQ(received.tensors.size(), 1u);
  EXPECT_EQ(received.tensors[0].info.shape, sent.tensors[0].info.shape);
  EXPECT_EQ(received.aliases.at(0).alias, "tied");
  EXPECT_EQ(state_digest(received), state_digest(sent));
}

TEST(Catalogue, DigestsWhateverIsPartOfTheState) {
  const std::uint64_t digest = state_digest(made_catalogue());
  const auto after = [](const auto& change) {
    Catalogue catalogue = made_catalogue();
    change(catalogue);
    return state_digest(catalogue);
  };
  EXPECT_NE(digest, after([](Catalogue& c) { ++c.header.step; }));
  EXPECT_NE(digest, after([](Catalogue& c) { c.attributes["progress"]["epoch"] = std::int64_t{2}; }));
  EXPECT_NE(digest, after([](Catalogue& c) { c.attributes["progress"]["epoch"] = 1.0; }));
  EXPECT_NE(digest, after([](Catalogue& c) { c.attributes["progress"].erase("epoch"); }));
  EXPECT_NE(digest, after([](Catalogue& c) { c.tensors[0].info.name = "v"; }));
  EXPECT_NE(digest, after([](Catalogue& c) { c.tensors[0].info.shape = {5, 20}; }));
  EXPECT_NE(digest, after([](Catalogue& c) { c.tensors[0].info.type = ElementType::int32; }));
  EXPECT_NE(digest, after([](Catalogue& c) { c.aliases.clear(); }));
  EXPECT_NE(digest, after([](Catalogue& c) { c.blocks[1].digest = 1; }));
  EXPECT_EQ(digest, after([](Catalogue& c) { c.launches.clear(); }));
  EXPECT_EQ(digest, after([](Catalogue& c) { c.attributes["provenance"]["host"] = std::string("x"); }));
}

TEST(SaveFault, ReadsItsTextAndStrikesOnlyThere) {
  const SaveFault fault = SaveFault::parse("fail@save:written,rank=1,step=40");
  EXPECT_NO_THROW(fault.reach(SaveStage::data, 1, 40));
  EXPECT_NO_THROW(fault.reach(SaveStage::written, 0, 40));
  EXPECT_NO_THROW(fault.reach(SaveStage::written, 1, 41));
  EXPECT_THROW(fault.reach(SaveStage::written, 1, 40), Error);
  EXPECT_NO_THROW(SaveFault().reach(SaveStage::start, 0, 0));
  for (const std::string& name : SaveFault::stage_names()) EXPECT_NO_THROW(SaveFault::parse("crash@save:" + name));
  for (const char* wrong : {"", "crash", "crash@save:", "crash@save:nowhere", "crash@save:data,rank=",
                            "fail@save:data,x=1", "fail@save:data,rank=a", "fail@save:data,"}) {
    EXPECT_THROW(SaveFault::parse(wrong), Error) << wrong;
  }
}

}  // namespace
}  // namespace lockstep
