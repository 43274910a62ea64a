package fscmd

import (
	"bytes"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/hdfs"
)

func TestParseMode(t *testing.T) {
	for _, c := range []struct {
		mode string
		bits uint32
		dir  bool
		want uint32
	}{
		{"0644", 0o777, false, 0o644},
		{"1777", 0, true, 0o1777},
		{"755", 0, true, 0o755},
		{"u+x", 0o644, false, 0o744},
		{"go-w", 0o666, false, 0o644},
		{"a=r", 0o777, false, 0o444},
		{"=r", 0o777, false, 0o444},
		{"u=rwx,go=rX", 0o600, true, 0o755},
		{"u=rw,go=rX", 0o600, false, 0o644},
		{"a+X", 0o744, false, 0o755},
		{"+t", 0o755, true, 0o1755},
		{"-t", 0o1755, true, 0o755},
	} {
		change, err := parseMode(c.mode)
		if err != nil {
			t.Errorf("%s: %v", c.mode, err)
			continue
		}
		if got := change(c.bits, c.dir); got != c.want {
			t.Errorf("%s of %o: %o, want %o", c.mode, c.bits, got, c.want)
		}
	}
	for _, bad := range []string{"", "8", "07777", "2777", "u", "u+q", "k+x", "64a", "99999999999999"} {
		if _, err := parseMode(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 1023: "1023", 1024: "1.0 K", 1536 << 20: "1.5 G", 1 << 62: "4.0 E"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestPathsAreRelativeToTheHome(t *testing.T) {
	for in, want := range map[string]string{"/a/../b": "/b", "/": "/", "/x//y/": "/x/y"} {
		if got := (&session{}).path(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// A command line as Hadoop has it, and as this program does.
func TestArguments(t *testing.T) {
	for from, to := range map[string]string{
		"fs -ls -R /":                            "fs ls -R /",
		"-v fs --namenode rm:1 -rm -skipTrash x": "-v fs --namenode rm:1 rm --skipTrash x",
		"fs find / -name ls -print":              "fs find / --name ls --print",
		"fs du -s -v /":                          "fs du -s --header /",
		"fs setfattr -n user.a -v -nl /":         "fs setfattr -n user.a --value --nl /",
		"fs cat -v /":                            "fs cat -v /",
		"fs rm -- -skipTrash":                    "fs rm -- -skipTrash",
		"info -nl":                               "info -nl",
		"fs -D a=b -fs nn:1 -conf x.xml -ls /":   "fs -D a=b --namenode nn:1 --hadoop-conf x.xml ls /",
		"fs -cp -f -ptopax /a /b":                "fs cp -f --preserve=topax /a /b",
		"fs -cp -p /a /b":                        "fs cp -p /a /b",
		"fs -count -q -t ssd,disk /a":            "fs count -q --types=ssd,disk /a",
		"fs -count -q -t /a":                     "fs count -q -t /a",
		"fs -find / -name a -a -name b -print0":  "fs find / --name a --name b --print0",
		"fs -checksum -v /a":                     "fs checksum --block-size /a",
		"fs -expunge -fs hdfs://nn:1":            "fs expunge --fs hdfs://nn:1",
		"fs -help ls":                            "fs help ls",
		"fs -chmod -w /a":                        "fs chmod a-w /a",
		"fs -chmod -R -x,+w /a":                  "fs chmod -R a-x,+w /a",
		"fs -chmod -rwx -R /a":                   "fs chmod a-rwx -R /a",
		"fs -chmod 644 -w":                       "fs chmod 644 -w",
		"fs -chmod -R 644 /a":                    "fs chmod -R 644 /a",
		"fs -chmod -q /a":                        "fs chmod -q /a",
		"fs -chmod -- -w /a":                     "fs chmod -- -w /a",
		"fs -rm -r /a":                           "fs rm -r /a",
	} {
		if got := strings.Join(Arguments(strings.Fields(from)), " "); got != to {
			t.Errorf("%s: %s, want %s", from, got, to)
		}
	}
}

// Counts leave out what is in snapshots alone if that is asked for, but what is left of quotas
// is what the NameNode heeds.
func TestCountsWithoutSnapshots(t *testing.T) {
	sum := &hdfs.Summary{
		Length: 100, Files: 7, Directories: 5, Space: 300, Quota: 20, SpaceQuota: 1000,
		SnapshotLength: 30, SnapshotFiles: 2, SnapshotDirectories: 1, SnapshotSpace: 90,
	}
	for without, want := range map[bool]string{
		false: "20 8 1000 700 5 7 100 30 2 1 90", true: "20 8 1000 700 4 5 70 30 2 1 90",
	} {
		c := count{quotas: true, snapshots: true, noSnapshots: without}
		if got := strings.Join(strings.Fields(c.line(sum)), " "); got != want {
			t.Errorf("%v: %s, want %s", without, got, want)
		}
	}
	if got := withoutSnapshots(sum); got.Length != 70 || got.Space != 210 || got.Files != 5 || got.Directories != 4 || sum.Length != 100 {
		t.Errorf("%+v of %+v", got, sum)
	}
}

// What a mode does keeps to the bits that there are, and done twice it does no more.
func FuzzParseMode(f *testing.F) {
	for _, mode := range []string{"0644", "u=rwx,go=rX", "+t", "a-w,u+x", "1777"} {
		f.Add(mode, uint32(0o644), true)
	}
	f.Fuzz(func(t *testing.T, mode string, bits uint32, dir bool) {
		change, err := parseMode(mode)
		if err != nil {
			return
		}
		once := change(bits&0o1777, dir)
		if once&^0o1777 != 0 {
			t.Fatalf("%q makes %o of %o", mode, once, bits&0o1777)
		}
		if twice := change(once, dir); !strings.ContainsAny(mode, "X,") && twice != once {
			t.Fatalf("%q makes %o of %o, and then %o", mode, once, bits&0o1777, twice)
		}
	})
}

// What getfattr shows in an encoding setfattr takes.
func FuzzAttributeValue(f *testing.F) {
	for _, text := range []string{"blue", `"blue"`, "0x00ff", "0sAP8=", "0x0", "", `"`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		value, err := attributeValue(text)
		if err != nil {
			return
		}
		for _, name := range []string{"hex", "base64"} {
			encode, err := encoder(name)
			if err != nil {
				t.Fatal(err)
			}
			if again, err := attributeValue(encode(value)); err != nil || !bytes.Equal(again, value) {
				t.Fatalf("%q: %q as %s is %q: %v", text, value, name, again, err)
			}
		}
	})
}

// FuzzFormatted has any format written; what is no directive stays.
func FuzzFormatted(f *testing.F) {
	f.Add("%a %A %b %F %g %n %o %r %u %x %X %y %Y %% %")
	info := &hdfs.FileInfo{}
	f.Fuzz(func(t *testing.T, format string) {
		got := formatted(format, info)
		if !strings.Contains(format, "%") && got != format {
			t.Fatalf("%q: %q", format, got)
		}
	})
}
