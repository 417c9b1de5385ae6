#include "sim/graph.h"

#include "sim/mem_graph.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "sim/capture.h"

namespace sluice::sim {

GraphState& graph_state(Process& process) {
  if (process.graphs_state == nullptr) process.graphs_state = std::make_shared<GraphState>();
  return *static_cast<GraphState*>(process.graphs_state.get());
}

Node* make_node(Process& process, NodeKind kind) {
  Node* node = graph_state(process).nodes.make();
  if (node != nullptr) node->kind = kind;
  return node;
}

Node* make_kernel_node(Process& process, const Launch& launch) {
  Node* node = make_node(process, NodeKind::kKernel);
  if (node != nullptr) node->launch = launch;
  return node;
}
Node* make_host_node(Process& process, const CUDA_HOST_NODE_PARAMS_v1& params) {
  Node* node = make_node(process, NodeKind::kHost);
  if (node != nullptr) node->host = params;
  return node;
}
Node* make_memop_node(Process& process, std::vector<CUstreamBatchMemOpParams> ops) {
  Node* node = make_node(process, NodeKind::kMemop);
  if (node != nullptr) node->memops = std::move(ops);
  return node;
}
Node* make_copy_node(Process& process, const CUDA_MEMCPY3D& copy) {
  Node* node = make_node(process, NodeKind::kMemcpy);
  if (node != nullptr) node->copy = copy;
  return node;
}
Node* make_memset_node(Process& process, const CUDA_MEMSET_NODE_PARAMS_v1& params) {
  Node* node = make_node(process, NodeKind::kMemset);
  if (node != nullptr) node->memset = params;
  return node;
}

Graph* make_graph(Process& process) {
  GraphState& state = graph_state(process);
  Graph* graph = state.graphs.make();
  if (graph != nullptr) graph->id = ++state.next_graph;
  return graph;
}

void destroy_graph(Process& process, Graph& graph) {
  GraphState& state = graph_state(process);
  for (Node* node : graph.nodes) {
    if (node->child != nullptr) destroy_graph(process, *node->child);
    state.nodes.free(node);
  }
  state.graphs.free(&graph);
}

void add_node(Graph& graph, Node& node, const std::vector<Node*>& after) {
  node.graph = &graph;
  node.id = ++graph.next_node;
  node.after = after;
  graph.nodes.push_back(&node);
}

Graph* clone_graph(Process& process, const Graph& from, std::vector<std::pair<Node*, Node*>>* map) {
  Graph* to = make_graph(process);
  if (to == nullptr) return nullptr;
  to->cloned_from = const_cast<Graph*>(&from);
  std::unordered_map<const Node*, Node*> copies;
  for (Node* node : from.nodes) {
    Node* copy = graph_state(process).nodes.make();
    if (copy == nullptr) {
      destroy_graph(process, *to);
      return nullptr;
    }
    *copy = *node;
    copy->graph = to;
    copy->cloned_from = node;
    copy->child = nullptr;
    to->nodes.push_back(copy);
    copies[node] = copy;
    if (map != nullptr) map->emplace_back(node, copy);
    if (node->child != nullptr && (copy->child = clone_graph(process, *node->child, map)) == nullptr) {
      destroy_graph(process, *to);
      return nullptr;
    }
  }
  for (Node* copy : to->nodes) {
    for (Node*& before : copy->after) before = copies[before];
  }
  to->next_node = from.next_node;
  return to;
}

std::vector<Node*> in_order(const Graph& graph) {
  std::unordered_map<const Node*, size_t> missing;
  std::unordered_map<const Node*, std::vector<Node*>> next;
  std::vector<Node*> order;
  for (Node* node : graph.nodes) {
    missing[node] = node->after.size();
    for (Node* before : node->after) next[before].push_back(node);
    if (node->after.empty()) order.push_back(node);
  }
  for (size_t i = 0; i < order.size(); ++i) {
    for (Node* node : next[order[i]]) {
      if (--missing[node] == 0) order.push_back(node);
    }
  }
  if (order.size() != graph.nodes.size()) order.clear();
  return order;
}

CUresult plan_spin(Call& call, Stream& stream, const Launch& launch, Submission* s) {
  uint64_t address = 0;
  if (launch.parameters.size() >= sizeof address) std::memcpy(&address, launch.parameters.data(), sizeof address);
  Mapping mapping;
  std::vector<Span> spans;
  Memory* memory = memory_of(call.process, address, &mapping);
  if (memory == nullptr || !memory->spans(address, 4, true, &spans) || spans[0].bytes == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  volatile uint32_t* word = reinterpret_cast<volatile uint32_t*>(spans[0].bytes);
  const int ordinal = stream.context->card;
  Card& card = *call.process.device(ordinal)->card;
  s->kind = CommandKind::kSpin;
  s->duration_ns = 0;
  s->flags = 2;  // any bit set
  s->value = 0xffffffff;
  {
    Card::Guard guard(card);
    s->cell = cell_for(card, call.process.device(ordinal)->record, address, *word);
  }
  if (s->cell == kNone) return CUDA_ERROR_OUT_OF_MEMORY;
  call.process.watch_word(ordinal, address, word, false);
  return CUDA_SUCCESS;
}

namespace {

// A run of nodes that need nothing but the card: laid out on its multiprocessors as soon as their predecessors in the
// run are done and enough multiprocessors are free, in order.
class Segment {
 public:
  Segment(uint32_t sms, uint64_t gap_ns) : sms_(sms), gap_ns_(gap_ns) {}

  void add(const Node* node, uint64_t duration_ns, uint32_t need, std::function<void()> effect) {
    uint64_t start = 0;
    for (const Node* before : node->after) {
      if (const auto at = ends_.find(before); at != ends_.end()) start = std::max(start, at->second + gap_ns_);
    }
    start = std::max(start, fits_from(start, need));
    placed_.push_back({start, start + duration_ns, need});
    running_.push_back(placed_.back());
    ends_[node] = start + duration_ns;
    peak_ = std::max(peak_, need);
    if (effect) effects_.push_back(std::move(effect));
  }
  bool empty() const { return placed_.empty(); }

  Submission plan() {
    std::sort(placed_.begin(), placed_.end(), [](const Piece& a, const Piece& b) { return a.start < b.start; });
    Submission s;
    s.kind = CommandKind::kGraph;
    s.sms = std::max(1u, peak_);
    uint64_t covered = 0;
    for (const Piece& p : placed_) {
      if (p.end > covered) s.executing_ns += p.end - std::max(p.start, covered);
      covered = std::max(covered, p.end);
    }
    s.duration_ns = covered;
    return s;
  }
  std::vector<std::function<void()>> take_effects() { return std::move(effects_); }

 private:
  struct Piece {
    uint64_t start, end;
    uint32_t need;
  };
  // Pieces are placed in order, so only those that still run matter: at most as many as there are multiprocessors.
  uint64_t fits_from(uint64_t start, uint32_t need) {
    std::erase_if(running_, [&](const Piece& p) { return p.end <= start; });
    uint32_t used = 0;
    for (const Piece& p : running_) used += p.need;
    std::sort(running_.begin(), running_.end(), [](const Piece& a, const Piece& b) { return a.end < b.end; });
    size_t ended = 0;
    while (used + need > sms_ && ended < running_.size()) {
      start = std::max(start, running_[ended].end);
      used -= running_[ended++].need;
    }
    return start;
  }

  uint32_t sms_;
  uint64_t gap_ns_;
  uint32_t peak_ = 0;
  std::vector<Piece> placed_, running_;
  std::unordered_map<const Node*, uint64_t> ends_;
  std::vector<std::function<void()>> effects_;
};

class Launcher {
 public:
  Launcher(Call& call, GraphExec& exec, Stream& stream)
      : call_(call), exec_(exec), stream_(stream), card_(*call.process.device(stream.context->card)->card) {}

  CUresult run() {
    if (const CUresult result = walk(*exec_.graph); result != CUDA_SUCCESS) return result;
    if (const CUresult result = flush(); result != CUDA_SUCCESS) return result;
    // The last command ends the unit; it also tells the exec's next launch when this one is over.
    Submission end;
    end.kind = CommandKind::kEffect;
    return append(end, true);
  }

 private:
  CUresult append(Submission s, bool last) {
    s.last_of_unit = last;
    if (first_) {
      s.dependency = exec_.last_launch;
      first_ = false;
    }
    CommandRef made;
    const CUresult result = call_.process.submit(stream_, s, &made, last);
    if (last) exec_.last_launch = made;
    return result;
  }

  Segment& segment() {
    if (!segment_) segment_ = std::make_unique<Segment>(card_.profile().sms, card_.knob_ns(Knob::node_gap_ns));
    return *segment_;
  }

  CUresult flush() {
    if (!segment_ || segment_->empty()) return CUDA_SUCCESS;
    Submission s = segment_->plan();
    auto effects = segment_->take_effects();
    segment_.reset();
    if (!effects.empty()) {
      s.effect = call_.process.add_effect([effects = std::move(effects)] {
        for (const auto& effect : effects) effect();
      });
    }
    return append(s, false);
  }

  CUresult walk(const Graph& graph) {
    for (Node* node : in_order(graph)) {
      if (!node->enabled) continue;
      if (const CUresult result = one(*node); result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  }

  CUresult kernel(Node& node) {
    if (const CUresult result = check_launch(card_, node.launch); result != CUDA_SUCCESS) return result;
    Submission s = plan_launch(call_, stream_, node.launch, ++stream_.launches);
    const Behaviour behaviour = node.launch.function->kernel.behaviour;
    if (behaviour == Behaviour::kSpin || behaviour == Behaviour::kCollective) {
      if (const CUresult result = flush(); result != CUDA_SUCCESS) return result;
      if (behaviour == Behaviour::kSpin) {
        if (const CUresult result = plan_spin(call_, stream_, node.launch, &s); result != CUDA_SUCCESS) return result;
      }
      call_.process.need_service();
      return append(s, false);
    }
    segment().add(&node, s.duration_ns, s.sms, kernel_effect(call_.process, node.launch));
    return CUDA_SUCCESS;
  }

  CUresult copy(Node& node) {
    CopyPlan plan;
    if (const CUresult result = plan_copy(call_.process, node.copy, &plan); result != CUDA_SUCCESS) return result;
    const uint64_t duration = copy_duration(card_, plan);
    if (plan.direction == Direction::kOnDevice) {
      segment().add(&node, duration, 0, std::move(plan.run));
      return CUDA_SUCCESS;
    }
    if (const CUresult result = flush(); result != CUDA_SUCCESS) return result;
    Submission s;
    s.kind = plan.direction == Direction::kToDevice ? CommandKind::kCopyToDevice : CommandKind::kCopyToHost;
    s.duration_ns = duration;
    s.effect = call_.process.add_effect(std::move(plan.run));
    return append(s, false);
  }

  CUresult one(Node& node) {
    switch (node.kind) {
      case NodeKind::kKernel:
        return kernel(node);
      case NodeKind::kMemcpy:
        return copy(node);
      case NodeKind::kChild:
        return walk(*node.child);
      case NodeKind::kMemset: {
        MemsetPlan plan;
        if (const CUresult result = plan_memset(call_.process, node.memset, &plan); result != CUDA_SUCCESS)
          return result;
        segment().add(&node, memset_duration(card_, plan), 0, std::move(plan.run));
        return CUDA_SUCCESS;
      }
      case NodeKind::kHost: {
        if (const CUresult result = flush(); result != CUDA_SUCCESS) return result;
        Submission s;
        s.kind = CommandKind::kHostFunction;
        s.effect = call_.process.add_host_function([params = node.host] { params.fn(params.userData); });
        call_.process.need_service();
        return append(s, false);
      }
      case NodeKind::kWaitEvent: {
        if (const CUresult result = flush(); result != CUDA_SUCCESS) return result;
        Event* event = find_event(call_, node.event);
        return event == nullptr ? CUDA_ERROR_INVALID_HANDLE : wait_for_event(call_, stream_, *event);
      }
      case NodeKind::kRecordEvent: {
        if (const CUresult result = flush(); result != CUDA_SUCCESS) return result;
        Event* event = find_event(call_, node.event);
        if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        Submission s;
        s.kind = CommandKind::kMarker;
        s.event = event->record;
        return append(s, false);
      }
      case NodeKind::kMemop:
        if (const CUresult result = flush(); result != CUDA_SUCCESS) return result;
        for (const CUstreamBatchMemOpParams& op : node.memops) {
          if (const CUresult result = run_memop(call_, stream_, op); result != CUDA_SUCCESS) return result;
        }
        return CUDA_SUCCESS;
      case NodeKind::kEmpty:
      case NodeKind::kAlloc:
      case NodeKind::kFree:
        return CUDA_SUCCESS;
    }
    return CUDA_SUCCESS;
  }

  Call& call_;
  GraphExec& exec_;
  Stream& stream_;
  Card& card_;
  std::unique_ptr<Segment> segment_;
  bool first_ = true;
};

void load_functions(const Graph& graph, std::vector<Function*>* functions) {
  for (const Node* node : graph.nodes) {
    if (node->kind == NodeKind::kKernel && !node->launch.function->loaded) functions->push_back(node->launch.function);
    if (node->child != nullptr) load_functions(*node->child, functions);
  }
}

}  // namespace

CUresult launch_graph(Call& call, GraphExec& exec, Stream& stream) {
  std::vector<Function*> functions;
  load_functions(*exec.graph, &functions);
  for (Function* function : functions) {
    if (const CUresult result = ensure_loaded(*function); result != CUDA_SUCCESS) return result;
  }
  if (const CUresult result = commit_graph_memory(call.process, exec); result != CUDA_SUCCESS) return result;
  CUresult result = CUDA_SUCCESS;
  {
    ContextLock lock(*stream.context);
    call.host().charge(Charge::kGraphLaunch, 0);
    if (exec.last_card != stream.context->card) exec.last_launch = {};
    exec.last_card = stream.context->card;
    result = Launcher(call, exec, stream).run();
  }
  finish_graph_memory(call.process, exec, stream);
  return result;
}

}  // namespace sluice::sim
