package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// letterOperations makes the operations of a comparison with Apache HDFS, one a
// line as soak/letter/Oracle.java reads them: user, operation, arguments,
// separated by tabs. They come in episodes, each of which begins with an empty
// file system, so that one difference does not hide those of the others.
//
// With attributes half of the operations are on access control lists and the like.
func letterOperations(seed uint64, count int, attributes bool) []string {
	g := &letterGenerator{Rand: rand.New(rand.NewPCG(seed, 0)), attributes: attributes}
	for len(g.lines) < count {
		g.episode(min(count, len(g.lines)+letterEpisode))
	}
	return g.lines[:count]
}

// letterEpisode is how many operations begin from one empty file system.
const letterEpisode = 250

// letterSlots is how many files of an episode are remembered as their writers
// know them.
const letterSlots = 8

type letterSlot struct{ path, client string }

type letterGenerator struct {
	*rand.Rand
	lines []string
	known []string // paths that may exist
	files []string // those of them that may be files
	slots [letterSlots]letterSlot

	attributes bool
	quotas     bool // this episode has quotas
}

func (g *letterGenerator) op(user, name string, args ...any) {
	var b strings.Builder
	b.WriteString(user + "\t" + name)
	for _, a := range args {
		fmt.Fprintf(&b, "\t%v", a)
	}
	g.lines = append(g.lines, b.String())
}

func pick[T any](g *letterGenerator, of ...T) T { return of[g.IntN(len(of))] }

// one tells yes once in n.
func (g *letterGenerator) one(n int) bool { return g.IntN(n) == 0 }

func (g *letterGenerator) user() string {
	return pick(g, "root", "root", "root", "root", "alice", "alice", "alice", "bob", "bob", "carol")
}

func (g *letterGenerator) mode() string {
	return pick(g, "755", "755", "777", "777", "777", "777", "1777", "1777", "1777", "700", "750", "770", "644", "666", "640", "0", "500", "300", "711", "1755", "1770", "555")
}

func (g *letterGenerator) client() string { return pick(g, "c1", "c1", "c2") }

func (g *letterGenerator) length() int {
	return pick(g, 0, 1, 100, 200, 511, 512, 600, 1000, 1024, 1500, 2048, 3000)
}

// fresh is a path that may or may not exist.
func (g *letterGenerator) fresh() string {
	base := ""
	if len(g.known) > 0 && !g.one(3) {
		base = strings.TrimSuffix(g.known[g.IntN(len(g.known))], "/")
	}
	for range 1 + g.IntN(2)*g.IntN(2) {
		base += "/" + pick(g, "a", "b", "c", "d", "x", "\u00e9")
	}
	return base
}

// path is one that probably exists.
func (g *letterGenerator) path() string {
	switch n := g.IntN(100); {
	case n < 3:
		return "/"
	case n < 8:
		return g.odd()
	case n < 25 || len(g.known) == 0:
		return g.fresh()
	}
	return g.known[g.IntN(len(g.known))]
}

// file is a path that probably is a file's.
func (g *letterGenerator) file() string {
	if len(g.files) == 0 || g.one(4) {
		return g.path()
	}
	return g.files[g.IntN(len(g.files))]
}

// target is one that an operation may make.
func (g *letterGenerator) target() string {
	switch n := g.IntN(100); {
	case n < 2:
		return "/"
	case n < 6:
		return g.odd()
	case n < 30 && len(g.known) > 0:
		return g.known[g.IntN(len(g.known))]
	}
	return g.fresh()
}

// odd is a path that is no plain one.
func (g *letterGenerator) odd() string {
	p := "/a"
	if len(g.known) > 0 {
		p = g.known[g.IntN(len(g.known))]
	}
	slot := strconv.Itoa(g.IntN(letterSlots))
	return pick(g,
		p+"/", p+"//b", "/"+p, p+"/..", p+"/../b", p+"/.", p+"/./b", p+"/b:c", p[1:], "", "//", "/a//",
		p+"/"+strings.Repeat("n", 255), p+"/"+strings.Repeat("n", 256), p+"/"+strings.Repeat("n", 256)+"/b",
		p+"/.snapshot", p+"/.snapshot/s", p+"/.snapshot/s/b", "/.snapshot", "/.snapshot/s", p+"/.reserved",
		"/.reserved", "/.reserved/", "/.reserved/x", "/.reserved/raw", "/.reserved/raw/", "/.reserved/raw"+p, "/.reserved/raw"+p+"/b",
		"/.reserved/raw/.reserved", "/.reserved/raw/.reserved/raw", "/.reserved/.inodes", "/.reserved/.inodes/", "/.reserved/.inodes/16385", "/.reserved/.inodes/16385/a",
		"/.reserved/.inodes/@"+slot, "/.reserved/.inodes/@"+slot, "/.reserved/.inodes/@"+slot+"/b", "/.reserved/.inodes/@"+slot+"/..", "/.reserved/.inodes/1", "/.reserved/.inodes/99999999/b", "/.reserved/.inodes/x",
		"/.reserved/raw/.reserved/.inodes/@"+slot, "/.Trash", p+"/ ", p+"/b c",
	)
}

// createParent tells whether the directories above path are to be made. Apache's
// NameNode makes them even if it then refuses the last name, ours changes nothing
// then; so not for such a name.
//
// The same holds where a quota may be in the way.
func (g *letterGenerator) createParent(path string) bool {
	if g.quotas {
		return false
	}
	return !g.one(3) && !strings.Contains(path, "nnnnnnnn") && !strings.Contains(path, ".snapshot")
}

// made remembers a path that may be a file's from now on.
func (g *letterGenerator) made(path string) {
	g.learn(path)
	if len(g.known) > 0 && slices.Contains(g.known, path) && !slices.Contains(g.files, path) {
		g.files = append(g.files, path)
		if len(g.files) > 8 {
			g.files = g.files[1:]
		}
	}
}

// learn remembers a path that may exist from now on.
func (g *letterGenerator) learn(path string) {
	if len(path) > 120 || strings.Contains(path, "@") || !strings.HasPrefix(path, "/") {
		return
	}
	if slices.Contains(g.known, path) {
		return
	}
	if len(g.known) >= 16 {
		g.known[g.IntN(len(g.known))] = path
		return
	}
	g.known = append(g.known, path)
}

func (g *letterGenerator) episode(end int) {
	g.known, g.files, g.slots = nil, nil, [letterSlots]letterSlot{}
	g.op("root", "reset")
	g.op("root", "setPermission", "/", pick(g, "755", "777", "777", "1777"))
	if g.quotas = g.attributes && g.one(2); g.quotas && g.one(2) {
		// Apache's NameNode does not count anew when a policy changes later.
		g.op("root", "setStoragePolicy", "/", pick(g, "HOT", "WARM", "ONE_SSD", "ALL_SSD", "PROVIDED"))
	}
	for range 3 + g.IntN(3) {
		p := g.fresh()
		g.learn(p)
		g.op("root", "mkdirs", p, g.modes(), "true")
		if !g.one(3) {
			g.op("root", "setPermission", p, g.mode())
		}
		if g.one(2) {
			g.op("root", "setOwner", p, pick(g, "alice", "bob", "carol"), pick(g, "staff", "users", "-"))
		}
	}
	for len(g.lines) < end-1 {
		if g.attributes && g.one(2) {
			g.attributeStep(g.user())
			continue
		}
		g.step()
	}
	g.op("root", "tree")
}

func (g *letterGenerator) step() {
	user := g.user()
	switch n := g.IntN(1000); {
	case n < 90:
		p := g.target()
		g.op(user, "mkdirs", p, g.modes(), g.createParent(p))
		g.learn(p)
	case n < 250:
		g.write(user)
	case n < 300:
		g.appendTo(user)
	case n < 340:
		g.partOfWrite(user)
	case n < 400:
		from, to := g.path(), g.target()
		if strings.Trim(from, "/") == "" {
			from = "/a" // Apache's NameNode fails: NullPointerException
		}
		g.op(user, "rename", from, to)
		g.learn(to)
	case n < 470:
		from, to := g.path(), g.target()
		g.op(user, "rename2", from, to, g.one(2))
		g.learn(to)
	case n < 530:
		p := g.path()
		if g.one(2) {
			p = g.fresh()
		}
		g.op(user, "delete", p, g.one(2))
	case n < 590:
		g.op(user, "setPermission", g.path(), g.mode())
	case n < 640:
		g.op(user, "setOwner", g.path(), pick(g, "-", "-", "alice", "bob", "carol", "dave", ""), pick(g, "-", "staff", "users", "supergroup", "nogroup", ""))
	case n < 665:
		g.op(user, "setReplication", g.file(), pick(g, 1, 2, 3, 0, 513, -1))
	case n < 695:
		g.op(user, "setTimes", g.path(), pick(g, -1, 0, 5, 100, 2000, -2), pick(g, -1, 0, 7, 300, 4000, -2))
	case n < 740:
		g.op(user, "truncate", g.file(), g.length(), g.client())
		if !g.one(3) {
			g.op("root", "beat")
		}
	case n < 790:
		g.op(user, "getFileInfo", g.path())
	case n < 795:
		g.op(user, "getFileLinkInfo", g.path())
	case n < 805:
		g.op(user, "getLocatedFileInfo", g.file())
	case n < 817:
		g.op(user, "checkAccess", g.path(), pick(g, "---", "--x", "-w-", "-wx", "r--", "r-x", "rw-", "rwx"))
	case n < 821:
		g.op(user, "getEnclosingRoot", g.path())
	case n < 822:
		g.op(user, "msync")
	case n < 850:
		g.op(user, "getListing", g.path(), pick(g, "", "", "", "a", "b", "c", "bb", "/a", "zz", "\u00e9"), g.one(3))
	case n < 885:
		g.op(user, "getContentSummary", g.path())
	case n < 915:
		g.concat(user)
	case n < 945:
		g.op(user, "getBlockLocations", g.file(), pick(g, 0, 0, 0, 1, 512, 1024, 1500, 5000, -1), pick(g, 0, 1, 512, 1024, 5000, 1<<30, -1))
	case n < 955:
		g.op(user, "isFileClosed", g.file())
	case n < 962:
		g.op(user, "getPreferredBlockSize", g.file())
	case n < 975:
		g.op(user, "recoverLease", g.file(), g.client())
		g.op("root", "beat") // until then the lease is whose it is for each server
	case n < 985:
		g.op(user, "learn", g.IntN(letterSlots), g.path())
	case n < 990:
		g.op("root", "beat")
	default:
		g.op("root", "tree")
	}
}

func (g *letterGenerator) write(user string) {
	p, client, slot := g.target(), g.client(), g.IntN(letterSlots)
	size := pick(g, 1024, 1024, 1024, 1024, 1024, 512, 512, 511, 2048)
	g.op(user, "create", slot, p, g.modes(), pick(g, "c", "c", "c", "co", "co", "co", "o", ""), g.createParent(p), pick(g, 1, 3, 3, 3, 3, 3, 3, 2, 0, 513), size, client)
	g.slots[slot] = letterSlot{p, client}
	g.made(p)
	if g.one(3) {
		return // left open
	}
	g.blocks(user, slot, g.length(), size)
}

// blocks writes and closes what slot has opened.
func (g *letterGenerator) blocks(user string, slot int, length, size int) {
	s := g.slots[slot]
	for length > 0 {
		n := min(length, size)
		g.op(user, "addBlock", slot, s.path, s.client, "id", "last")
		if g.one(10) {
			g.op(user, "fsync", slot, s.path, s.client, "id", -1)
		}
		g.op("root", "received", slot, n)
		length -= n
	}
	if !g.one(8) {
		g.op(user, "complete", slot, s.path, s.client, "id", "last")
	}
}

func (g *letterGenerator) appendTo(user string) {
	p, client, slot := g.file(), g.client(), g.IntN(letterSlots)
	g.slots[slot] = letterSlot{p, client}
	fresh := pick(g, "new", "old", "old")
	g.op(user, "append", slot, p, fresh, client)
	if g.one(3) {
		return
	}
	if fresh == "new" {
		g.blocks(user, slot, pick(g, 0, 100, 600), 1024)
		return
	}
	g.op(user, "grow", slot, client, 1024)
	g.op(user, "complete", slot, p, client, "id", "last")
}

// partOfWrite is one call of a writer, in its place or out of it.
func (g *letterGenerator) partOfWrite(user string) {
	slot := g.IntN(letterSlots)
	s := g.slots[slot]
	if s.path == "" || g.one(4) {
		s.path = g.file()
	}
	if s.client == "" || g.one(4) {
		s.client = g.client()
	}
	id := pick(g, "id", "path")
	switch g.IntN(6) {
	case 0, 1:
		g.op(user, "addBlock", slot, s.path, s.client, id, pick(g, "-", "last", "last"))
		g.op("root", "received", slot, pick(g, 100, 511))
	case 2:
		g.op(user, "abandon", slot, s.path, s.client, id)
	case 3:
		g.op(user, "fsync", slot, s.path, s.client, id, -1)
	case 4, 5:
		g.op(user, "complete", slot, s.path, s.client, id, pick(g, "-", "last", "last"))
	}
}

func (g *letterGenerator) concat(user string) {
	target := g.file()
	args := []any{target}
	for range g.IntN(3) + g.IntN(2) {
		p := g.file()
		if at := strings.LastIndexByte(target, '/'); at >= 0 && g.one(2) {
			p = target[:at+1] + pick(g, "a", "b", "c", "d", "x", "y")
		}
		args = append(args, p)
	}
	g.op(user, "concat", args...)
}
