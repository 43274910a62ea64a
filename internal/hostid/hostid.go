// Package hostid tells whether two processes run on one booted host, and in one
// network namespace of it.
package hostid

import (
	"crypto/rand"
	"crypto/sha256"
	"strings"
	"sync"
)

// Size of an identity in bytes.
const Size = 16

// ID returns the identity of this host since it was booted. Containers of one
// host share it. It is a digest, so that the boot identifier itself, which other
// software treats as confidential, does not go over the network.
//
// Where the system has no such identifier the identity is random, and no two
// processes have the same.
var ID = sync.OnceValue(func() (id [Size]byte) {
	boot := strings.TrimSpace(bootID())
	if boot == "" {
		_, _ = rand.Read(id[:]) // never fails
		return id
	}
	sum := sha256.Sum256([]byte("verbena host identity\x00" + boot))
	copy(id[:], sum[:])
	return id
})

// Network returns the identity of the network namespace that the process runs in:
// equal for two processes of one host exactly if addresses, abstract Unix sockets
// included, mean the same to both. It is nil where the system does not tell.
var Network = sync.OnceValue(func() []byte {
	boot, name := strings.TrimSpace(bootID()), namespace()
	if boot == "" || name == "" {
		return nil
	}
	sum := sha256.Sum256([]byte("verbena network namespace\x00" + boot + "\x00" + name))
	return sum[:Size]
})
