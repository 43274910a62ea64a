// Package perf is `verbena perf`: it measures what a transport costs, at the
// level of verbs or of the runtime, in latency, message rate, bandwidth and
// processor time. A [Server] serves one TCP port; [Client.Run] agrees on a
// measurement with it, and both carry it out. docs/perf.md defines what they say.
//
// The loops that are measured allocate nothing and read the clock once for each round
// trip, as perftest and UCX do. They leave nothing out that an application has to do:
// each message takes a receive that is posted anew, the provider checks its keys, and
// both ends poll its completions.
package perf
