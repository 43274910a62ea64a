// Package rdma is the verbs model: what a program can ask of memory that
// belongs to another process, whatever carries it there.
//
// The model is that of reliable-connected queue pairs. A [Provider] finds
// devices; a [Device] opens protection domains; a [Domain] makes everything
// else: memory [Region]s, [CompletionQueue]s, [SharedReceiveQueue]s and
// [QueuePair]s. Work requests are posted to a queue pair and come back as
// [Completion]s from its completion queues.
//
// Three rules hold for every provider:
//
//   - Memory that a device touches comes from [Domain.Allocate]. A
//     scatter-gather entry names a region, an offset and a length, never a slice
//     of the Go heap.
//   - Data that a peer wrote is guaranteed to be visible once a later Send or
//     immediate of that peer has completed here. Polling a flag that a Write
//     sets works only where the device has [CapPolledWrites].
//   - What a device lacks it says in its [Attributes]; a request for it fails
//     with [ErrUnsupported]. Nothing is emulated silently.
//
// Devices fail in one of two ways, told by [Class]. On the InfiniBand class a
// refused access completes that very request with an error status. On the
// iWARP class a Write is complete once the byte stream has it, so a refusal
// arrives later: the queue pair fails, an [Event] says why, and the requests
// that are still outstanding complete as [StatusFlushed].
//
// The package holds the model alone and imports nothing of the project. Its
// sub-packages are the providers and rdmatest, the conformance suite that each
// of them passes.
package rdma
