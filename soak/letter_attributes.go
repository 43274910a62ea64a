package main

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// modes is a mode for what is made; half of the time with that before the client's
// umask.
func (g *letterGenerator) modes() string {
	mode := g.mode()
	if g.attributes && g.one(2) {
		mode += ":" + pick(g, "777", "777", "777", "666", "1777", "755", "700", "0")
	}
	return mode
}

// attributeStep is an operation on what few files have.
func (g *letterGenerator) attributeStep(user string) {
	if g.one(2) {
		user = "root"
	}
	switch n := g.IntN(10); {
	case g.quotas && n < 6:
		g.quotaStep(user)
	case n < 4:
		g.aclStep(user)
	case n < 7 || g.quotas:
		g.xattrStep(user)
	default:
		g.policyStep(user)
	}
}

func (g *letterGenerator) quotaStep(user string) {
	p := g.path()
	if !g.one(6) {
		user = "root"
	}
	const keep, none = math.MaxInt64, -1
	switch n := g.IntN(20); {
	case n < 6:
		g.op(user, "setQuota", p, pick(g, keep, keep, none, 0, 1, 2, 3, 4, 6, -2), pick(g, keep, keep, none, 0, 512, 1024, 3072, 6144, 6144, 20000, 20000), "-")
	case n < 8:
		g.op(user, "setQuota", p, pick(g, keep, keep, keep, keep, 1), pick(g, none, 0, 1024, 2048, 6144, 20000), pick(g, "DISK", "SSD", "ARCHIVE", "PROVIDED"))
	case n < 14:
		// Of the root Apache's NameNode counts kinds of storage wrong, below 0 too.
		if slices.Contains(g.known, p) && p != "/" {
			g.op(user, "getQuotaUsage", p)
		}
	default:
		g.op(user, "getContentSummary", p)
	}
}

func (g *letterGenerator) policyStep(user string) {
	p := g.path()
	switch n := g.IntN(20); {
	case n < 10:
		// Apache's NameNode has no storage for COLD either, but looks for some for long.
		g.op(user, "setStoragePolicy", p, pick(g, "HOT", "WARM", "warm", "ALL_SSD", "ONE_SSD", "LAZY_PERSIST", "PROVIDED", "ALL_NVDIMM", "TEPID"))
	case n < 13:
		g.op(user, "unsetStoragePolicy", p)
	case n < 19:
		g.op(user, "getStoragePolicy", p)
	default:
		g.op(user, pick(g, "getStoragePolicies", "satisfyStoragePolicy"), p)
	}
}

// xattrName is one of few, or one of as many as there must not be.
func (g *letterGenerator) xattrName() string {
	if g.one(12) {
		return "user.n" + strconv.Itoa(g.IntN(40))
	}
	return pick(g, "user.a", "user.a", "user.b", "user.b", "user.", "user.\u00e9", "trusted.a", "trusted.b", "security.a", "system.a", "raw.a", "raw.b",
		"security.hdfs.unreadable.by.superuser", "user.hdfs.unreadable.by.superuser")
}

func (g *letterGenerator) xattrStep(user string) {
	p, name := g.path(), g.xattrName()
	if strings.HasPrefix(name, "raw.") && g.one(2) && strings.HasPrefix(p, "/") && !strings.HasPrefix(p, "/.reserved") {
		p = "/.reserved/raw" + p
	}
	switch n := g.IntN(100); {
	case n < 3: // more than an inode may have
		for i := range 34 {
			g.op("root", "setXAttr", p, "user.n"+strconv.Itoa(i), "-", "cr")
		}
		g.op("root", "listXAttrs", p)
	case n < 45:
		value := pick(g, "-", "-", "v0", "v1", "w3", "x1024", "y1025", "z16383", "z16384", "z40000")
		if name == "security.hdfs.unreadable.by.superuser" && !g.one(4) {
			value = "-"
		}
		g.op(user, "setXAttr", p, name, value, pick(g, "c", "c", "cr", "cr", "cr", "r", ""))
	case n < 60:
		g.op(user, "removeXAttr", p, name)
	case n < 80:
		g.op(user, "listXAttrs", p)
	default:
		args := []any{p}
		for range g.IntN(3) {
			args = append(args, g.xattrName())
		}
		g.op(user, "getXAttrs", args...)
	}
}

func (g *letterGenerator) aclStep(user string) {
	p := g.path()
	switch n := g.IntN(100); {
	case n < 20:
		g.op(user, "setAcl", p, g.acl(true))
	case n < 45:
		g.op(user, "modifyAclEntries", p, g.acl(false))
	case n < 55:
		g.op(user, "removeAclEntries", p, g.acl(false))
	case n < 59:
		g.op(user, "removeDefaultAcl", p)
	case n < 63:
		g.op(user, "removeAcl", p)
	case n < 85:
		g.op(user, "getAclStatus", p)
	default:
		g.op(user, "checkAccess", p, pick(g, "---", "--x", "-w-", "r--", "r-x", "rw-", "rwx"))
	}
}

// acl is a list of entries as the shell takes it; whole ones are mostly complete.
func (g *letterGenerator) acl(whole bool) string {
	perm := func() string { return pick(g, "rwx", "rwx", "r-x", "r--", "---", "-w-", "--x", "rw-") }
	scope := func() string { return pick(g, "", "", "default:") }
	var entries []string
	if whole && !g.one(6) {
		s := scope()
		for _, who := range []string{"user::", "group::", "other::"} {
			entries = append(entries, s+who+perm())
		}
	}
	if whole && g.one(20) {
		return ""
	}
	for range 1 + g.IntN(3) {
		entries = append(entries, scope()+pick(g,
			"user:alice:", "user:alice:", "user:bob:", "user:carol:", "user:dave:", "group:staff:", "group:staff:", "group:users:", "group::", "user::", "other::", "mask::", "mask::")+perm())
	}
	if g.one(40) {
		for i := range 25 + g.IntN(10) {
			entries = append(entries, "user:u"+string(rune('a'+i%26))+strings.Repeat("x", i/26)+":"+perm())
		}
	}
	if g.one(50) {
		entries = append(entries, pick(g, "mask:x:rwx", "other:x:r--", "default:mask:x:rwx"))
	}
	g.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
	return strings.Join(entries, ",")
}
