// Package stubs has the operations of a device that does not exist, for tests
// and benchmarks of the binding: post, poll and arm as C functions written in
// assembly, with the signatures of struct ibv_context_ops. They keep to a script
// that lies in the memory of the queue they are called with.
package stubs
