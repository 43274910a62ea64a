package tmpfs

import "testing"

func TestMounted(t *testing.T) {
	const mounts = `22 1 0:20 / / rw,relatime - tmpfs tmpfs rw,size=1g
24 22 0:21 / /dev/shm rw,nosuid shared:5 - tmpfs tmpfs rw,size=24683656k
25 22 0:22 / /mnt/large\040ones rw - tmpfs tmpfs rw,size=8g,huge=within_size
26 22 0:22 /in /mnt/large\040ones/bound rw - tmpfs tmpfs rw,size=8g,huge=within_size
27 22 0:23 / /mnt/all rw - tmpfs tmpfs rw,huge=always
28 22 0:24 / /mnt/asked rw - tmpfs tmpfs rw,huge=advise
29 22 8:1 / /data rw - ext4 /dev/sda1 rw
30 22 0:25
`
	for _, c := range []struct {
		device, dir, mount, huge string
	}{
		{"0:20", "/data/dn", "/", ""},
		{"0:21", "/dev/shm/dn", "/dev/shm", ""},
		{"0:21", "/dev/shm", "/dev/shm", ""},
		{"0:21", "/dev/shmoo", "", ""},
		{"0:22", "/mnt/large ones/dn", "/mnt/large ones", "within_size"},
		{"0:22", "/mnt/large ones/bound/dn", "/mnt/large ones/bound", "within_size"},
		{"0:23", "/mnt/all/dn", "/mnt/all", "always"},
		{"0:24", "/mnt/asked/dn", "/mnt/asked", "advise"},
		{"8:1", "/data/dn", "", ""},
		{"0:99", "/none", "", ""},
	} {
		if mount, huge := mounted(mounts, c.device, c.dir); mount != c.mount || huge != c.huge {
			t.Errorf("%s of device %s: %q, %q; want %q, %q", c.dir, c.device, mount, huge, c.mount, c.huge)
		}
	}
}

func TestReleases(t *testing.T) {
	for release, want := range map[string]bool{"6.18.44-fc": true, "6.14.0": true, "6.13.9": false, "5.15.0-91-generic": false, "7.0": true, "": false, "x": false} {
		if got := givesLarge(release); got != want {
			t.Errorf("%q: %v", release, got)
		}
	}
}
