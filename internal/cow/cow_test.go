package cow

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// checkMap compares a map with its model, from a random number on too.
func checkMap(t *testing.T, rng *rand.Rand, m *Map[string], model map[uint64]string) {
	t.Helper()
	if m.Len() != len(model) {
		t.Fatalf("%d values, want %d", m.Len(), len(model))
	}
	keys := slices.Sorted(maps.Keys(model))
	start := uint64(0)
	for range 2 {
		var want []uint64
		if i := slices.IndexFunc(keys, func(k uint64) bool { return k >= start }); i >= 0 {
			want = keys[i:]
		}
		var got []uint64
		for k, v := range m.From(start) {
			if *v != model[k] || m.Get(k) != v {
				t.Fatalf("%d has %q, want %q", k, *v, model[k])
			}
			got = append(got, k)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("from %d: %d numbers, want %d", start, len(got), len(want))
		}
		start = randomNumber(rng)
	}
}

func randomNumber(rng *rand.Rand) uint64 {
	switch rng.IntN(20) {
	case 0:
		return rng.Uint64()
	case 1:
		return math.MaxUint64 - rng.Uint64N(3)
	case 2, 3:
		return 1<<30 + rng.Uint64N(20_000)
	}
	return rng.Uint64N(20_000)
}

// Random histories, with versions taken at random: each stays what it was.
func TestMapOfManyVersions(t *testing.T) {
	type version struct {
		m     *Map[string]
		model map[uint64]string
	}
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var m Map[string]
		model := map[uint64]string{}
		var versions []version
		for i := range 20_000 {
			k := randomNumber(rng)
			switch v := fmt.Sprint(i); rng.IntN(5) {
			case 0, 1:
				model[k] = v
				if p := m.Put(k, v); *p != v || m.Get(k) != p {
					t.Fatalf("put %d and got %q", k, *p)
				}
			case 2:
				p := m.Change(k)
				if _, ok := model[k]; ok != (p != nil) {
					t.Fatalf("%d is there %t, want %t", k, p != nil, ok)
				}
				if p != nil {
					*p, model[k] = v, v
				}
			case 3:
				delete(model, k)
				m.Delete(k)
			case 4:
				if got, want := m.Get(k), model[k]; got != nil && *got != want || got == nil && want != "" {
					t.Fatalf("%d has another value than %q", k, want)
				}
			}
			if rng.IntN(1000) == 0 {
				versions = append(versions, version{m.Freeze(), maps.Clone(model)})
			}
		}
		checkMap(t, rng, &m, model)
		for _, v := range versions {
			checkMap(t, rng, v.m, v.model)
		}
		for k := range model {
			m.Delete(k)
		}
		if m.Len() != 0 || m.root != (ref[string]{}) {
			t.Fatalf("%d values and pages are left of an empty map", m.Len())
		}
	}
}

// A change after a version copies one page of each kind, and the next one there none.
func TestMapCopiesWhatItTouches(t *testing.T) {
	var m Map[[4]uint64]
	for i := range uint64(100_000) {
		m.Put(i, [4]uint64{i})
	}
	m.Freeze()
	m.Change(500)
	if n := testing.AllocsPerRun(100, func() { m.Change(501)[0]++; m.Get(77_777) }); n != 0 {
		t.Errorf("a change of a page that was copied already allocates %v times", n)
	}
	if n := testing.AllocsPerRun(100, func() { m.Freeze(); m.Change(501)[0]++ }); n > 6 {
		t.Errorf("the first change after a version allocates %v times", n)
	}
}

func checkNames(t *testing.T, rng *rand.Rand, s *Names, model map[string]uint64) {
	t.Helper()
	want := slices.SortedFunc(maps.Keys(model), func(a, b string) int {
		if Before(a, b) {
			return -1
		}
		return 1
	})
	if s.Len() != len(model) {
		t.Fatalf("%d names, want %d", s.Len(), len(model))
	}
	for _, p := range s.pages {
		if len(p.entries) == 0 || len(p.entries) > pageNames {
			t.Fatalf("a page of %d", len(p.entries))
		}
	}
	for range 5 {
		start := ""
		if rng.IntN(3) > 0 {
			start = randomName(rng)
		}
		rest := want
		if start != "" {
			i := slices.IndexFunc(want, func(name string) bool { return Before(start, name) })
			if i < 0 {
				i = len(want)
			}
			rest = want[i:]
		}
		var got []string
		s.After(start, func(name string, number uint64) bool {
			if number != model[name] {
				t.Fatalf("%s is %d, want %d", name, number, model[name])
			}
			got = append(got, name)
			return true
		})
		if !slices.Equal(got, rest) || start != "" && s.Rest(start) != len(rest) {
			t.Fatalf("after %q: %d names, Rest says %d, want %d", start, len(got), s.Rest(start), len(rest))
		}
	}
}

func randomName(rng *rand.Rand) string {
	name := fmt.Sprint(rng.IntN(3000))
	if rng.IntN(4) == 0 {
		name += "\u00e9"
	}
	return name
}

func TestNamesOfManyVersions(t *testing.T) {
	type version struct {
		s     Names
		model map[string]uint64
	}
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var s Names
		gen := uint64(1)
		model := map[string]uint64{}
		var versions []version
		for i := range uint64(20_000) {
			name := randomName(rng)
			if seed == 0 && i < 5000 {
				name = fmt.Sprintf("%08d", i)
			}
			number, there := s.Get(name)
			if want, ok := model[name]; ok != there || number != want {
				t.Fatalf("%s is %d, %t, want %d, %t", name, number, there, want, ok)
			}
			switch {
			case there && rng.IntN(2) == 0:
				s.Delete(gen, name)
				delete(model, name)
			case !there && rng.IntN(4) == 0 && s.Append(gen, name, i), !there && rng.IntN(2) == 0:
				if _, ok := s.Get(name); !ok {
					s.Insert(gen, name, i)
				}
				model[name] = i
			}
			if rng.IntN(1000) == 0 {
				versions = append(versions, version{s, maps.Clone(model)})
				gen++
			}
		}
		checkNames(t, rng, &s, model)
		for i := range versions {
			checkNames(t, rng, &versions[i].s, versions[i].model)
		}
	}
}

// Names come in Apache's order, in which bytes are signed, and a listing goes on
// behind any of them.
func TestNamesInApachesOrder(t *testing.T) {
	want := []string{"\u00e9t\u00e9", "\u4e2d", "A", "a", "a\u00e9", "aa", "b"}
	var s Names
	for _, i := range []int{3, 0, 6, 2, 5, 1, 4} {
		s.Insert(0, want[i], uint64(i))
	}
	for i := -1; i < len(want); i++ {
		start := ""
		if i >= 0 {
			start = want[i]
		}
		var got []string
		s.After(start, func(name string, _ uint64) bool {
			got = append(got, name)
			return true
		})
		if !slices.Equal(got, want[i+1:]) {
			t.Errorf("behind %q: %q, want %q", start, got, want[i+1:])
		}
	}
}

func BenchmarkMapGet(b *testing.B) {
	var m Map[[10]uint64]
	for i := range uint64(1 << 20) {
		m.Put(1<<30+i, [10]uint64{i})
	}
	var i uint64
	for b.Loop() {
		i = i*6364136223846793005 + 1
		if m.Get(1<<30+i>>44) == nil {
			b.Fatal("nothing there")
		}
	}
}

// Each change is the first of its page after a version.
func BenchmarkMapCopy(b *testing.B) {
	var m Map[[10]uint64]
	for i := range uint64(1 << 20) {
		m.Put(i, [10]uint64{i})
	}
	var i uint64
	for b.Loop() {
		m.Freeze()
		i = i*6364136223846793005 + 1
		m.Change(i >> 44)[0]++
	}
}

func BenchmarkNamesInsert(b *testing.B) {
	names := make([]string, 1<<20)
	for i := range names {
		names[i] = fmt.Sprintf("part-%08d", uint32(i)*2654435761)
	}
	var s Names
	i := 0
	for b.Loop() {
		if i == len(names) {
			s, i = Names{}, 0
		}
		s.Insert(1, names[i], uint64(i))
		i++
	}
}

// Names are in the order of Java's signed bytes, wherever the first difference is.
func TestBefore(t *testing.T) {
	signed := func(a, b string) int {
		return slices.CompareFunc([]byte(a), []byte(b), func(x, y byte) int { return cmp.Compare(int8(x), int8(y)) })
	}
	r := rand.New(rand.NewPCG(1, 2))
	letters := []byte{0, 1, 'a', 0x7f, 0x80, 0xff}
	for range 100_000 {
		a := make([]byte, r.IntN(20))
		for i := range a {
			a[i] = letters[r.IntN(len(letters))]
		}
		b := slices.Clone(a[:r.IntN(len(a)+1)]) // mostly alike
		for range r.IntN(12) {
			b = append(b, letters[r.IntN(len(letters))])
		}
		if got, want := Before(string(a), string(b)), signed(string(a), string(b)) < 0; got != want {
			t.Fatalf("%x before %x: %v", a, b, got)
		}
	}
}

func BenchmarkNames(b *testing.B) {
	var names Names
	all := make([]string, 1000)
	for i := range all {
		all[i] = fmt.Sprintf("part-%05d.parquet", i)
		names.Insert(1, all[i], uint64(i))
	}
	n := 0
	for b.Loop() {
		if _, ok := names.Get(all[n%len(all)]); !ok {
			b.Fatal("a name is missing")
		}
		n += 37
	}
}
