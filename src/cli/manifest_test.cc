#include "cli/manifest.h"

#include <gtest/gtest.h>

namespace sluice::cli {
namespace {

// A Job with these lines in its container (indented by ten) and in its pod spec (by six).
std::string job_text(const std::string& container, const std::string& pod = "", const std::string& job = "") {
  return "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: bench\nspec:\n" + job +
         "  template:\n    metadata:\n      labels:\n        app: bench\n    spec:\n      restartPolicy: Never\n" +
         pod + "      containers:\n        - name: train\n          image: example/train\n" + container;
}

const char* kShared =
    "          command: [train]\n          args: [\"--steps\", \"$(STEPS)\", \"$$x\", \"$(NONE)\"]\n"
    "          env:\n            - name: STEPS\n              value: \"100\"\n            - name: ME\n              "
    "valueFrom:\n"
    "                fieldRef:\n                  fieldPath: metadata.name\n          workingDir: /tmp\n"
    "          resources:\n            limits:\n              aliyun.com/gpu-mem: 10\n"
    "              aliyun.com/gpu-core.percentage: \"30\"\n              cpu: 2\n";

TEST(Manifest, ReadsAJob) {
  const auto job = parse_manifest(job_text(kShared));
  ASSERT_TRUE(job) << job.error().message;
  EXPECT_EQ(job->name, "bench");
  EXPECT_EQ(job->container, "train");
  EXPECT_EQ(job->command, (std::vector<std::string>{"train", "--steps", "100", "$x", "$(NONE)"}));
  EXPECT_EQ(job->env, (std::vector<std::pair<std::string, std::string>>{{"STEPS", "100"}, {"ME", "bench"}}));
  EXPECT_EQ(job->working_directory, "/tmp");
  EXPECT_EQ(job->memory_units, "10");
  EXPECT_EQ(job->core_percent, "30");
  EXPECT_EQ(job->whole_cards, std::nullopt);
  EXPECT_EQ(job->ignored, (std::vector<std::string>{"restartPolicy", "image", "resources (cpu)"}));
}

TEST(Manifest, ReadsAPodWithItsLabelAndPriority) {
  const auto pod = parse_manifest(
      "apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {aliyun.com/gpu-count: \"2\"}}\nspec:\n  containers:\n"
      "  - {name: c, image: i, command: [x], resources: {limits: {nvidia.com/gpu: 1}},\n"
      "     env: [{name: ALIYUN_COM_GPU_SCHD_WEIGHT, value: \"7\"}, {name: ALIYUN_COM_GPU_HIGH_PRIO, value: "
      "\"true\"}]}\n");
  ASSERT_TRUE(pod) << pod.error().message;
  EXPECT_EQ(pod->card_count, "2");
  EXPECT_EQ(pod->whole_cards, "1");
  EXPECT_EQ(pod->weight, "7");
  EXPECT_TRUE(pod->high_priority);
}

TEST(Manifest, ChoosesAmongSeveral) {
  const std::string two =
      job_text(kShared) + "---\napiVersion: v1\nkind: Service\nmetadata: {name: s}\n---\n" +
      "apiVersion: v1\nkind: Pod\nmetadata: {name: other}\nspec: {containers: [{name: c, command: [y]}]}\n";
  EXPECT_EQ(parse_manifest(two, "other")->command, (std::vector<std::string>{"y"}));
  EXPECT_EQ(parse_manifest(two).error().message,
            "the manifest holds 2 Jobs and Pods (bench, other); choose one with --job NAME");
  EXPECT_EQ(parse_manifest(two, "third").error().message,
            "no Job or Pod called 'third' in the manifest; it has bench, other");
}

TEST(Manifest, VolumesThatAreThereAlreadyAreAccepted) {
  const std::string volumes =
      "      volumes:\n        - {name: shm, emptyDir: {medium: Memory}}\n        - {name: data, hostPath: {path: "
      "/data}}\n";
  const std::string mounts =
      "          command: [x]\n          volumeMounts:\n            - {name: shm, mountPath: /dev/shm}\n"
      "            - {name: data, mountPath: /data}\n";
  EXPECT_TRUE(parse_manifest(job_text(mounts, volumes)));
}

struct Wrong {
  const char* name;
  std::string text;
  const char* message;  // part of it
};

TEST(Manifest, EveryRefusalNamesFieldAndMend) {
  const std::string ok = "          command: [x]\n";
  const Wrong wrongs[] = {
      {"no command", job_text(""),
       "spec.template.spec.containers[0].command is missing: the image, which would name a program"},
      {"typing mistake", job_text(ok + "          workingdir: /\n"),
       "containers[0].workingdir is no field that Kubernetes knows"},
      {"two containers", job_text(ok + "        - name: b\n          command: [y]\n"),
       "lists 2 containers, but sluice run starts one"},
      {"init container", job_text(ok, "      initContainers: [{name: i}]\n"),
       "initContainers is not supported by sluice run: only"},
      {"secret", job_text(ok + "          envFrom: [{secretRef: {name: s}}]\n"),
       "envFrom is not supported by sluice run: config maps"},
      {"number in env", job_text(ok + "          env: [{name: A, value: 1}]\n"),
       "env[0].value is a number, but has to be text; write it in quotes: \"1\""},
      {"secret key", job_text(ok + "          env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]\n"),
       "env[0].valueFrom is not supported"},
      {"volume", job_text(ok + "          volumeMounts: [{name: v, mountPath: /v}]\n"),
       "volumeMounts[0] is not supported by sluice run: volume 'v' at /v"},
      {"privileged", job_text(ok + "          securityContext: {privileged: true}\n"),
       "privileged is true: a privileged program could"},
      {"privileged in YAML 1.1's words", job_text(ok + "          securityContext: {privileged: yes}\n"),
       "privileged is text, but has to be true or false"},
      {"NUL in a command", job_text("          command: [\"a\\0b\"]\n"), "command[0] holds a NUL character (\\0)"},
      {"NUL in an argument", job_text(ok + "          args: [x, \"\\u0000\"]\n"), "args[1] holds a NUL character"},
      {"NUL in a value", job_text(ok + "          env: [{name: A, value: \"a\\0b\"}]\n"), "env[0].value holds a NUL"},
      {"NUL in a variable", job_text(ok + "          env: [{name: \"A\\0\", value: b}]\n"), "env[0].name holds a NUL"},
      {"NUL in a folder", job_text(ok + "          workingDir: \"/tmp\\0\"\n"), "workingDir holds a NUL"},
      {"octal", job_text(ok + "          resources: {limits: {aliyun.com/gpu-mem: 010}}\n"), "010 is octal to some"},
      {"UTF-16",
       std::string("\xff\xfe"
                   "k\0:\0 \0"
                   "1\0",
                   10),
       "save it as UTF-8"},
      {"parallel", job_text(ok, "", "  parallelism: 2\n"), "spec.parallelism is 2: sluice run starts the command once"},
      {"indexed", job_text(ok, "", "  completionMode: Indexed\n"), "spec.completionMode is \"Indexed\": indexes"},
      {"requests differ",
       job_text(ok + "          resources: {requests: {aliyun.com/gpu-mem: 5}, limits: {aliyun.com/gpu-mem: 6}}\n"),
       "aliyun.com/gpu-mem: requests says 5, limits says 6"},
      {"requests alone", job_text(ok + "          resources: {requests: {aliyun.com/gpu-mem: 5}}\n"),
       "requests says 5, limits says nothing"},
      {"list as text", job_text("          command: x\n"), "containers[0].command is text, but has to be a list"},
      {"other kind", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n",
       "the manifest holds Deployment, but sluice run takes"},
      {"old version", "apiVersion: batch/v1beta1\nkind: Job\nmetadata: {name: d}\nspec: {}\n",
       "a Job is known as batch/v1"},
      {"nothing", "", "the manifest is empty"},
      {"a list", "- a\n", "the manifest is a list, but has to be a mapping"},
      {"no name", "apiVersion: v1\nkind: Pod\nspec: {containers: []}\n", "metadata.name is missing"},
      {"no containers", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {}\n",
       "spec.containers is missing or empty"},
  };
  for (const Wrong& wrong : wrongs) {
    const auto job = parse_manifest(wrong.text);
    ASSERT_FALSE(job) << wrong.name;
    EXPECT_EQ(job.error().code, ErrorCode::kInvalid) << wrong.name;
    EXPECT_NE(job.error().message.find(wrong.message), std::string::npos) << wrong.name << ": " << job.error().message;
  }
}

TEST(Manifest, ReferencesFollowTheClustersRules) {
  const std::vector<std::pair<std::string, std::string>> env = {{"A", "1"}, {"B", "x$(A)"}, {"A", "2"}};
  const std::pair<const char*, const char*> cases[] = {
      {"$(A)", "2"}, {"$(B)", "x$(A)"}, {"$$(A)", "$(A)"}, {"$(C)", "$(C)"},
      {"$", "$"},    {"$x", "$x"},      {"$(A", "$(A"},    {"a$(A)b$(A)", "a2b2"}};
  for (const auto& [text, expected] : cases) EXPECT_EQ(expand_references(text, env), expected) << text;
}

}  // namespace
}  // namespace sluice::cli
