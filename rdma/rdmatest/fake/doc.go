// Package fake is a model of an RDMA network within one process.
//
// A [Network] holds any number of [Device]s, of either class and with any
// capabilities and limits; a device connects to the addresses of all devices of
// its network. Everything happens under one lock of the network and each
// connected queue pair has one goroutine that carries out its requests one by
// one: what is here is meant to be obviously right, not fast. It is the
// reference that rdmatest holds against the model itself, and what tests use in
// place of hardware.
//
// Faults are injected by the methods of a device: [Device.Kill], [Device.Stop],
// [Device.Refuse], [Device.HoldCompletions], [Device.DropAfter],
// [Device.Overrun]. [Bugs] go further: a device with bugs breaks the model,
// which is how the conformance suite is itself tested.
package fake
