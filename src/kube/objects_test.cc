#include "kube/objects.h"

#include <gtest/gtest.h>

#include "kube/allocation.h"

namespace sluice::kube {
namespace {

constexpr const char* kPod =
    R"({"metadata":{"uid":"u1","namespace":"n","name":"p","labels":{"aliyun.com/gpu-count":"2"},
  "annotations":{"sluice.dev/x":"1","other":"2"},"deletionTimestamp":null},
  "spec":{"nodeName":"a","priority":7,"schedulingGates":[],
    "initContainers":[{"name":"i","resources":{"limits":{"aliyun.com/gpu-mem":"4"}}},{"name":"s","restartPolicy":"Always"}],
    "containers":[{"name":"c","resources":{"limits":{"aliyun.com/gpu-mem":20,"aliyun.com/gpu-core.percentage":"60"}}}]},
  "status":{"phase":"Pending"}})";

TEST(DecodePod, KeepsWhatIsNeeded) {
  Result<Pod> pod = decode_pod(*json::parse(kPod));
  ASSERT_TRUE(pod.ok()) << pod.error().message;
  EXPECT_EQ(pod->full_name(), "n/p");
  EXPECT_EQ(pod->priority, 7);
  EXPECT_FALSE(pod->deleting);
  EXPECT_EQ(pod->annotations.size(), 1u);
  EXPECT_EQ(pod->text.card_count, "2");
  ASSERT_EQ(pod->text.containers.size(), 3u);
  EXPECT_EQ(pod->text.containers[0].role, core::ContainerRole::kInit);
  EXPECT_EQ(pod->text.containers[1].role, core::ContainerRole::kSidecar);
  EXPECT_EQ(pod->text.containers[2].memory_units, "20");
  EXPECT_TRUE(pod->asks());
}

TEST(DecodePod, WrongKindsAreNamed) {
  EXPECT_FALSE(decode_pod(*json::parse("[]")).ok());
  EXPECT_EQ(decode_pod(*json::parse(R"({"spec":7})")).error().message, "'spec' is not an object");
  EXPECT_EQ(decode_pod(*json::parse(R"({"spec":{"containers":{}}})")).error().message,
            "'spec.containers' is not a list");
  EXPECT_FALSE(decode_pod(*json::parse(R"({"metadata":{"labels":{"a":1}}})")).ok());
}

json::Value node_json(const std::string& labels, const std::string& annotations) {
  return *json::parse(R"({"metadata":{"name":"a","labels":{)" + labels + R"(},"annotations":{)" + annotations +
                      R"(}},"status":{"capacity":{"aliyun.com/gpu-mem":"62","aliyun.com/gpu-count":"2"}}})");
}

TEST(DecodeNode, CardsComeFromTheAgentOrFromTheSum) {
  Result<NodeDescription> agent = decode_node(
      node_json(
          R"("ack.node.gpu.schedule":"core_mem","ack.node.gpu.placement":"spread","ack.node.gpu.max-pod":"3")",
          R"("sluice.dev/cards":"[{\"index\":0,\"uuid\":\"GPU-1\",\"model\":\"V100\",\"memory_mib\":32510,\"units\":31,\"healthy\":false}]")"),
      {});
  ASSERT_TRUE(agent.ok()) << agent.error().message;
  EXPECT_EQ(agent->problem, "");
  EXPECT_EQ(agent->node.mode, core::NodeMode::kCoreMemory);
  EXPECT_EQ(agent->node.card_order, core::CardOrder::kSpread);
  EXPECT_EQ(agent->node.max_pods_per_card, 3);
  ASSERT_EQ(agent->node.cards.size(), 1u);
  EXPECT_EQ(agent->node.cards[0].units, 31);
  EXPECT_FALSE(agent->node.cards[0].healthy);

  Result<NodeDescription> bare = decode_node(node_json(R"("cgpu":"true")", ""), {});
  ASSERT_TRUE(bare.ok());
  EXPECT_EQ(bare->node.mode, core::NodeMode::kMemory);
  ASSERT_EQ(bare->node.cards.size(), 2u);
  EXPECT_EQ(bare->node.cards[1].units, 31);
}

TEST(DecodeNode, MoreUnitsThanACardCanHaveAreNoCards) {
  json::Value object = *json::parse(
      R"({"metadata":{"name":"a"},"status":{"capacity":{"aliyun.com/gpu-mem":"9000000000000000000",
          "aliyun.com/gpu-count":"1"}}})");
  Result<NodeDescription> node = decode_node(object, {});
  ASSERT_TRUE(node.ok());
  EXPECT_TRUE(node->node.cards.empty());
}

// The API server writes 1000 as 1k.
TEST(DecodeNode, QuantitiesInTheirShortestForm) {
  json::Value object = *json::parse(
      R"({"metadata":{"name":"a"},"status":{"capacity":{"aliyun.com/gpu-mem":"1k","aliyun.com/gpu-count":"8"},
          "allocatable":{"aliyun.com/gpu-mem":"2M","aliyun.com/gpu-core.percentage":"1Ki"}}})");
  Result<NodeDescription> node = decode_node(object, {});
  ASSERT_TRUE(node.ok());
  ASSERT_EQ(node->node.cards.size(), 8u);
  EXPECT_EQ(node->node.cards[0].units, 125);
  EXPECT_EQ(node->allocatable_units, 2'000'000);
  EXPECT_FALSE(node->allocatable_core_percent);
}

TEST(DecodeNode, TheAgentsModeBeatsTheLabelAndFaultsOfferNothing) {
  Result<NodeDescription> node = decode_node(
      node_json(R"("ack.node.gpu.schedule":"core_mem")", R"("sluice.dev/mode":"cgpu","sluice.dev/cards":"[{}]")"), {});
  ASSERT_TRUE(node.ok());
  EXPECT_EQ(node->node.mode, core::NodeMode::kMemory);
  EXPECT_TRUE(node->node.cards.empty());
  EXPECT_EQ(node->problem, "annotation sluice.dev/cards: 'index' is missing, expected a whole number");
  EXPECT_EQ(mode_of_labels({{"ack.node.gpu.schedule", "mig"}}), core::NodeMode::kNothing);
  EXPECT_EQ(mode_of_labels({}), core::NodeMode::kDefault);
}

struct Record {
  core::Node node;
  Allocation allocation;
  Signer signer = Signer::generate();
  Verifier verifier = *Verifier::from_pem({Signer::generate().public_pem(), signer.public_pem()});
  std::map<std::string, std::string> annotations;

  Record() {
    node.name = "a";
    node.cards = {core::make_card(0, "GPU-0", "V100", 32510), core::make_card(1, "GPU-1", "V100", 32510)};
    core::PodRequest request = *core::parse_pod({{{"c", core::ContainerRole::kMain, "10", "30", std::nullopt},
                                                  {"d", core::ContainerRole::kMain, "2", "5", std::nullopt}},
                                                 std::nullopt});
    allocation = make_allocation(request, node, core::placement_on(node, request.total, {1}));
    annotations = to_annotations(allocation, node, {"x", "c", "d"}, "u1", signer, 123);
  }
};

TEST(AllocationRecord, IsReadBackAndNamesCardsByUuid) {
  Record record;
  Result<Allocation> read = read_allocation(record.annotations, "u1", "a", record.verifier);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, record.allocation);
  EXPECT_EQ(read->cards[0].uuid, "GPU-1");
  EXPECT_EQ(read->cards[0].units, 12);
  EXPECT_EQ(read->cards[0].core_milli, 350);
  EXPECT_EQ(record.annotations[kAnnotationAckAllocation], R"({"1":{"1":10},"2":{"1":2}})");
  EXPECT_EQ(record.annotations[kAnnotationAckCore], R"({"1":{"1":30},"2":{"1":5}})");
  EXPECT_EQ(record.annotations["ALIYUN_COM_GPU_MEM_IDX"], "1");
  EXPECT_EQ(record.annotations["ALIYUN_COM_GPU_MEM_DEV"], "31");
  EXPECT_EQ(*parse_allocation(record.annotations[kAnnotationAllocation]), record.allocation);
  EXPECT_FALSE(parse_allocation(R"({"version":2})").ok());
}

TEST(AllocationRecord, AnyChangeBreaksTheSignature) {
  Record record;
  auto refused = [&](std::map<std::string, std::string> annotations, const char* uid, const char* node) {
    Result<Allocation> read = read_allocation(annotations, uid, node, record.verifier);
    return !read.ok() && read.error().code == ErrorCode::kPermission;
  };
  EXPECT_TRUE(refused(record.annotations, "u2", "a"));
  EXPECT_TRUE(refused(record.annotations, "u1", "b"));
  for (size_t i = 0; i < record.annotations[kAnnotationAllocation].size(); ++i) {
    auto edited = record.annotations;
    edited[kAnnotationAllocation][i] = static_cast<char>(edited[kAnnotationAllocation][i] ^ 1);
    EXPECT_TRUE(refused(edited, "u1", "a"));
  }
  auto unsigned_record = record.annotations;
  unsigned_record.erase(kAnnotationSignature);
  EXPECT_TRUE(refused(unsigned_record, "u1", "a"));
  unsigned_record[kAnnotationSignature] = std::string(88, 'A');
  EXPECT_TRUE(refused(unsigned_record, "u1", "a"));
  unsigned_record.erase(kAnnotationAllocation);
  EXPECT_EQ(read_allocation(unsigned_record, "u1", "a", record.verifier).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace sluice::kube
