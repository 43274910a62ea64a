package namenode

import (
	"os/user"
	"sync"
	"time"
)

// systemGroups asks the operating system for users' groups.
type systemGroups struct {
	mu    sync.Mutex
	known map[string]knownGroups
}

type knownGroups struct {
	names []string
	until time.Time
}

const (
	groupsTTL = 5 * time.Minute
	// maxKnownUsers bounds what callers with invented names can make us keep.
	maxKnownUsers = 4096
)

func newSystemGroups() *systemGroups {
	return &systemGroups{known: make(map[string]knownGroups)}
}

func (g *systemGroups) lookup(name string) []string {
	now := time.Now()
	g.mu.Lock()
	k, ok := g.known[name]
	g.mu.Unlock()
	if ok && now.Before(k.until) {
		return k.names
	}
	k = knownGroups{names: lookupGroups(name), until: now.Add(groupsTTL)}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.known) >= maxKnownUsers {
		clear(g.known)
	}
	g.known[name] = k
	return k.names
}

// lookupGroups returns no groups for a user that the system does not know, and
// leaves out groups that have no name.
func lookupGroups(name string) []string {
	u, err := user.Lookup(name)
	if err != nil {
		return nil
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(ids))
	for _, id := range ids {
		if g, err := user.LookupGroupId(id); err == nil {
			names = append(names, g.Name)
		}
	}
	return names
}
