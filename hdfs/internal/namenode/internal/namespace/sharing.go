package namespace

import (
	"encoding/binary"

	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/storagepolicy"
)

// sharedLists is how many different access control lists are remembered, so that inodes with
// equal ones share them: what is inherited is mostly the same. A list that is forgotten, when
// there are more, stays where it is; another copy of it may come.
const sharedLists = 4096

// sharing are attributes that have an access control list and nothing else, by its entries.
type sharing map[string]*attributes

// share returns attributes that are equal to a, those of another inode if it can.
func (s sharing) share(a *attributes) *attributes {
	if a == nil || len(a.acl) == 0 {
		return a
	}
	if len(a.xattrs) > 0 || a.limits != nil || a.policy != storagepolicy.Unspecified {
		return a
	}
	var buf [256]byte
	key := buf[:0]
	for _, e := range a.acl {
		key = append(key, byte(e.Scope), byte(e.Type), e.Perm)
		key = binary.AppendUvarint(key, uint64(len(e.Name)))
		key = append(key, e.Name...)
	}
	if known, ok := s[string(key)]; ok {
		return known
	}
	if len(s) >= sharedLists {
		clear(s)
	}
	s[string(key)] = a
	return a
}
