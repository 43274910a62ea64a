// Package groups asks the operating system which groups users are in, and remembers
// the answers for five minutes.
//
// It imports nothing of the project.
package groups

import (
	"os/user"
	"sync"
	"time"
)

// System is the operating system. Its methods may be called concurrently.
type System struct {
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

// New returns the operating system, of which nothing is known yet.
func New() *System {
	return &System{known: make(map[string]knownGroups)}
}

// Lookup returns a user's groups, none of one that the system does not know.
func (g *System) Lookup(name string) []string {
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

// Forget has everything asked again.
func (g *System) Forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.known)
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
