// Package cases holds the lab's test cases, which run inside the virtual machine
// that "go run ./lab" boots: the verbs providers and the runtime over the
// kernel's Soft-RoCE and Soft-iWARP, beside the programs of rdma-core and
// perftest. Outside of it they do nothing.
package cases
