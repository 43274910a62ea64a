package blocktoken

import (
	"bytes"
	"encoding/hex"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
)

// vectors are what testdata/BlockTokens.java gives to Hadoop's class.
var vectors = []Identifier{
	{Expiry: 4102444800000, KeyID: 1, User: "ada", Pool: "BP-1", Block: 1073741825, Generation: 1001, Modes: Read},
	{Expiry: 4102444800000, KeyID: 127, User: "ada", Pool: "BP-1", Block: 1073741825, Generation: 1001, Modes: Write, StorageTypes: []string{"DISK"}, StorageIDs: []string{"DS-1"}},
	{Expiry: 4102444800000, KeyID: 128, Generation: 1001, Modes: Read | Write | Copy | Replace},
	{Expiry: math.MaxInt64, KeyID: math.MaxInt32, User: "zoë", Pool: "BP-QAXV-1795399795830", Block: math.MaxInt64, Generation: 1001, Modes: Copy,
		StorageTypes: []string{"SSD", "ARCHIVE"}, StorageIDs: []string{"DS-a", "DS-b"}},
	{Expiry: 4102444800000, KeyID: -113, User: "bob", Pool: "BP-2", Block: 1<<64 - 2, Generation: 1001, Modes: Replace},
	{Expiry: 4102444800000, KeyID: -112, User: "bob", Pool: "BP-2", Block: 255, Modes: Read},
	{Expiry: 1, KeyID: math.MinInt32, User: "bob", Pool: "BP-2", Block: 256, Generation: 1001, Modes: Read},
}

// TestHadoopsIdentifiers compares with what Apache Hadoop 3.4.1 wrote and signed.
func TestHadoopsIdentifiers(t *testing.T) {
	file, err := os.ReadFile("testdata/hadoop-3.4.1.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(file)), "\n")
	if len(lines) != len(vectors) {
		t.Fatalf("%d vectors, want %d", len(lines), len(vectors))
	}
	key := make([]byte, 32)
	for i := range key {
		key[i] = byte(i)
	}
	for i, line := range lines {
		f := strings.Fields(line)
		theirs, err := hex.DecodeString(f[0])
		if err != nil {
			t.Fatal(err)
		}
		id, err := Parse(theirs)
		if err != nil || !reflect.DeepEqual(*id, vectors[i]) {
			t.Errorf("vector %d is read as %+v, want %+v: %v", i, id, vectors[i], err)
			continue
		}
		ours := id.Append(nil)
		if id.Generation == 0 {
			ours = ours[:len(ours)-9] // Hadoop's ends before the message that it lacks
		}
		if !bytes.Equal(ours, theirs) {
			t.Errorf("vector %d: %x, Hadoop writes %x", i, ours, theirs)
		}
		if f[1] != "expired" && hex.EncodeToString(password(key, theirs)) != f[1] {
			t.Errorf("vector %d: password %x, Hadoop's is %s", i, password(key, theirs), f[1])
		}
	}
}

func FuzzParse(f *testing.F) {
	for i := range vectors {
		f.Add(vectors[i].Append(nil))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		id, err := Parse(b)
		if err != nil {
			return
		}
		again, err := Parse(id.Append(nil))
		if err != nil || !reflect.DeepEqual(id, again) {
			t.Fatalf("%+v comes back as %+v: %v", id, again, err)
		}
	})
}
