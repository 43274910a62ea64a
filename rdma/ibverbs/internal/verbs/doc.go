// Package verbs is the binding to libibverbs and librdmacm: nothing but their
// calls and structures, typed, without cgo. It decides nothing; queue pairs with
// the semantics of package rdma are made of it one level up.
//
// The libraries are opened at run time by [Load], so that one binary runs where
// they are and where they are not. Structures are reached by offset tables, for
// amd64 and arm64, which a test holds against the installed headers entry by
// entry. Calls go through package foreign: control verbs by the route that may
// block, posting and polling by the function pointers in the device's context
// and by the route that its driver allows (see [Context.Mode]).
//
// The package is dangerous in the way C is:
//
//   - A handle must not be used after its Destroy, Close, Dealloc or Deregister,
//     nor while one of these runs; nothing checks that.
//   - Handles are destroyed before what they were made from: queue pairs before
//     their completion queues and shared receive queues, those before the
//     domain, the domain before the context.
//   - Work requests, their entries and completions lie in an [Arena], outside of
//     the Go heap, and belong to one goroutine at a time. Memory that is
//     registered must be mapped memory, too, never Go's.
//
// Apart from that, verbs on different or the same handles may be called
// concurrently, as libibverbs permits. Event file descriptors are non-blocking;
// the File methods hand out duplicates for the netpoller.
//
// Everything but Load needs Linux on amd64 or arm64 and a build without the tag
// noibverbs; files that use more carry the same build constraint:
//
//	//go:build linux && (amd64 || arm64) && !noibverbs
package verbs

import "errors"

// ErrUnavailable is wrapped by the errors of [Load], [Library.Devices] and
// [Library.Open] that say what the host lacks and what to do about it.
var ErrUnavailable = errors.New("ibverbs is unavailable")
