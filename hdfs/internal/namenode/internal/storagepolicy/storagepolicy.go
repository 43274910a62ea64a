// Package storagepolicy is HDFS's suite of storage policies: which kinds of storage the
// replicas of a block are meant for. It imports nothing of the project.
package storagepolicy

import (
	"fmt"
	"strings"
)

// Type is a kind of storage.
type Type uint8

// The numbers are those of Hadoop's StorageTypeProto.
const (
	Disk     Type = 1
	SSD      Type = 2
	Archive  Type = 3
	RAMDisk  Type = 4
	Provided Type = 5
	NVDIMM   Type = 6
)

// Types is above all kinds.
const Types = 7

var typeNames = [Types]string{Disk: "DISK", SSD: "SSD", Archive: "ARCHIVE", RAMDisk: "RAM_DISK", Provided: "PROVIDED", NVDIMM: "NVDIMM"}

func (t Type) String() string {
	if t == 0 || t >= Types {
		return fmt.Sprintf("Type(%d)", uint8(t))
	}
	return typeNames[t]
}

// Counted are the kinds whose use may be bounded by quotas, in Hadoop's order: those that
// keep what they are given.
var Counted = [...]Type{SSD, Disk, Archive, Provided, NVDIMM}

// Unspecified is the id of no policy: the parent's counts.
const Unspecified = 0

// Policy is one of the suite.
type Policy struct {
	ID       uint8
	Name     string
	Creation []Type // of the first replica, the second and so on; the last of all others
	// CreationFallback and ReplicationFallback are taken if there is no storage of those kinds.
	CreationFallback, ReplicationFallback []Type
	// CopiedOnCreate: a new file gets it from its directory, and keeps it.
	CopiedOnCreate bool
}

const (
	hot         = 7
	lazyPersist = 15
)

// suite is in the order of ids.
var suite = []Policy{
	{ID: 1, Name: "PROVIDED", Creation: []Type{Provided, Disk}, CreationFallback: []Type{Provided, Disk}, ReplicationFallback: []Type{Provided, Disk}},
	{ID: 2, Name: "COLD", Creation: []Type{Archive}},
	{ID: 5, Name: "WARM", Creation: []Type{Disk, Archive}, CreationFallback: []Type{Disk, Archive}, ReplicationFallback: []Type{Disk, Archive}},
	{ID: hot, Name: "HOT", Creation: []Type{Disk}, ReplicationFallback: []Type{Archive}},
	{ID: 10, Name: "ONE_SSD", Creation: []Type{SSD, Disk}, CreationFallback: []Type{SSD, Disk}, ReplicationFallback: []Type{SSD, Disk}},
	{ID: 12, Name: "ALL_SSD", Creation: []Type{SSD}, CreationFallback: []Type{Disk}, ReplicationFallback: []Type{Disk}},
	{ID: 14, Name: "ALL_NVDIMM", Creation: []Type{NVDIMM}, CreationFallback: []Type{Disk}, ReplicationFallback: []Type{Disk}},
	{ID: lazyPersist, Name: "LAZY_PERSIST", Creation: []Type{RAMDisk, Disk}, CreationFallback: []Type{Disk}, ReplicationFallback: []Type{Disk}, CopiedOnCreate: true},
}

// All returns the suite in the order of ids. It must not be changed.
func All() []Policy { return suite }

// LazyPersist is the policy of files created with that flag.
func LazyPersist() Policy { return suite[len(suite)-1] }

// ByID returns a policy, that of files without one if the id is Unspecified.
func ByID(id uint8) (Policy, bool) {
	if id == Unspecified {
		id = hot
	}
	for _, p := range suite {
		if p.ID == id {
			return p, true
		}
	}
	return Policy{}, false
}

// ByName returns a policy by its name in any case.
func ByName(name string) (Policy, bool) {
	for _, p := range suite {
		if strings.EqualFold(p.Name, name) {
			return p, true
		}
	}
	return Policy{}, false
}

// Choose returns the kinds that so many replicas are counted for. Those in memory are not.
func (p Policy) Choose(replication int) []Type {
	out := make([]Type, 0, replication)
	for _, t := range p.Creation {
		if len(out) < replication && t != RAMDisk {
			out = append(out, t)
		}
	}
	last := p.Creation[len(p.Creation)-1]
	for len(out) < replication && last != RAMDisk {
		out = append(out, last)
	}
	return out
}

// NeedsMoreThan tells whether blocks can't be made where there is only storage of one kind.
func (p Policy) NeedsMoreThan(only Type) bool {
	for _, list := range [][]Type{p.Creation, p.CreationFallback} {
		for _, t := range list {
			if t == only {
				return false
			}
		}
	}
	return true
}

// String is the policy as HDFS's messages have it.
func (p Policy) String() string {
	list := func(types []Type) string {
		names := make([]string, len(types))
		for i, t := range types {
			names[i] = t.String()
		}
		return "[" + strings.Join(names, ", ") + "]"
	}
	return fmt.Sprintf("BlockStoragePolicy{%s:%d, storageTypes=%s, creationFallbacks=%s, replicationFallbacks=%s}", p.Name, p.ID, list(p.Creation), list(p.CreationFallback), list(p.ReplicationFallback))
}
