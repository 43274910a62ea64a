// Package perf is `verbena perf`: it measures what a transport costs, at the
// level of verbs or of the runtime, in latency, message rate, bandwidth and
// processor time. A [Server] serves one TCP port; [Run] plans a measurement with
// it, which both then carry out. docs/perf.md defines what they say.
//
// The loops that are measured allocate nothing and look at the clock once for
// each round trip, as perftest and UCX do. Receives are posted and posted again
// for each message, keys are checked by the provider, completions are taken at
// both ends.
package perf
