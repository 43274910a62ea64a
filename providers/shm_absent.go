//go:build noshm

package providers

var shmEntry = absent("shm", "noshm")
