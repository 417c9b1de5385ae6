"""What markers cost on this card. The measuring rules assume 1 us on either side; here is what is so."""


def check_costs(context):
    rounds = 30 if context.strict else 5
    done = context.run([context.build.programs / "gpu_costs", "--rounds", rounds, "--json", "--device", context.machine.card])
    got = context.answer("costs", "gpu_costs", done)
    if got is None:
        return

    def figure(name):
        return f"{got[name]['median_us']:.2f} us, least {got[name]['min_us']:.2f}"

    for name, text in (("event_record", "cuEventRecord, host"), ("event_query_done", "cuEventQuery of a finished event"),
                       ("event_query_running", "cuEventQuery while a kernel runs")):
        good = got[name]["median_us"] <= 2
        context.timed("costs", text, good, got[name]["median_us"] <= 20, figure(name), "<= 2 us")
    context.timed("costs", "two markers in a row, on the card", got["marker_pair_on_card"]["median_us"] <= 2, True,
                  figure("marker_pair_on_card"), "<= 2 us")
    context.results.add("costs", "cuStreamWriteValue32, host", figure("stream_write_value") if got["stream_write_value"] else
                        "not offered")
    plain_host, plain_card = got["launch_plain_host"]["median_us"], got["kernel_plain_card"]["median_us"]
    context.results.add("costs", "launch of a 5 us kernel, no marker", f"host {plain_host:.2f} us, card {plain_card:.2f} us")
    for every in (1, 8, 64):
        host = got[f"launch_marker_every_{every}_host"]["median_us"] - plain_host
        card = got[f"kernel_marker_every_{every}_card"]["median_us"] - plain_card
        found, note = f"host {host:+.3f} us, card {card:+.3f} us per kernel", f"{100 * card / plain_card:+.2f} % of card time"
        if every == 64:  # what the guest does with kernels this short
            context.timed("costs", "marker every 64 kernels of 5 us adds", host <= 0.2 and card <= 0.004 * 250 / 5, host <= 5,
                          found, "host <= 0.2 us per launch", note)
        else:
            context.results.add("costs", f"marker every {every} kernels of 5 us adds", found, note=note)
    graph = got["graph_marked_card"]["median_us"] - got["graph_plain_card"]["median_us"]
    context.results.add("costs", "marker after each replay of a graph of 100 kernels adds", f"card {graph:+.2f} us per replay",
                        note=f"{100 * graph / got['graph_plain_card']['median_us']:+.2f} % of card time")


CHECKS = {"costs": [check_costs]}
