//go:build amd64 || arm64

package perf

const hasCounter = true

// counter is the processor's time stamp counter (RDTSC, CNTVCT_EL0).
//
//go:noescape
func counter() uint64
