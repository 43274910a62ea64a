package ibverbs

import (
	"bytes"
	"errors"
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

func TestPrivateData(t *testing.T) {
	for _, n := range []int{0, 1, maxPrivate - 1, maxPrivate} {
		data := bytes.Repeat([]byte{0xA7}, n)
		sent, err := appendPrivate(nil, data)
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		if len(sent) > connectRoom {
			t.Errorf("%d bytes become %d, the connection manager has room for %d", n, len(sent), connectRoom)
		}
		for _, padding := range []int{0, 1, 150} {
			came := append(bytes.Clone(sent), make([]byte, padding)...)
			got, framed := parsePrivate(came)
			if !framed || !bytes.Equal(got, data) {
				t.Errorf("%d bytes with %d of padding come back as %x, with a header: %v", n, padding, got, framed)
			}
			if cap(got) != len(got) {
				t.Errorf("%d bytes with %d of padding: whoever appends writes into the padding", n, padding)
			}
		}
	}
	if _, err := appendPrivate(nil, make([]byte, maxPrivate+1)); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("too much: error %v, want ErrInvalid", err)
	}
}

func TestForeignPrivateData(t *testing.T) {
	for _, test := range []struct {
		name       string
		came, want []byte
	}{
		{"nothing", nil, nil},
		{"padding alone", make([]byte, 56), nil},
		{"a foreign program's", []byte("hello\x00\x00"), []byte("hello\x00\x00")},
		{"the mark and no length", []byte{0x56, 0x42, 0}, []byte{0x56, 0x42, 0}},
		{"the mark and a length beyond the end", []byte{0x56, 0x42, 0, 9, 1, 2}, []byte{0x56, 0x42, 0, 9, 1, 2}},
	} {
		if got, framed := parsePrivate(test.came); framed || !bytes.Equal(got, test.want) {
			t.Errorf("%s: %x, with a header: %v; want %x without", test.name, got, framed, test.want)
		}
	}
}

// iWARP keeps lengths: what others send may look like the header.
func TestPrivateDataOfIWARP(t *testing.T) {
	for _, data := range [][]byte{{}, {0, 0}, {0x56, 0x42, 0, 1, 7}, bytes.Repeat([]byte{1}, maxPrivate)} {
		sent, err := packPrivate(rdma.ClassIWARP, data)
		if err != nil || !bytes.Equal(sent, data) {
			t.Errorf("%x is sent as %x: %v", data, sent, err)
		}
		if got, framed := unpackPrivate(rdma.ClassIWARP, sent); framed || !bytes.Equal(got, data) {
			t.Errorf("%x comes back as %x, with a header: %v", data, got, framed)
		}
	}
	if _, err := packPrivate(rdma.ClassIWARP, make([]byte, maxPrivate+1)); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("too much: error %v, want ErrInvalid", err)
	}
}

func FuzzPrivateData(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 56))
	f.Add([]byte{0x56, 0x42, 0, 3, 1, 2, 3, 0, 0})
	f.Add([]byte{0x56, 0x42, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, came []byte) {
		data, framed := parsePrivate(came)
		if len(data) > len(came) {
			t.Fatalf("%d bytes out of %d", len(data), len(came))
		}
		if !framed || len(data) > maxPrivate {
			return
		}
		again, err := appendPrivate(nil, data)
		if err != nil || !bytes.HasPrefix(came, again) {
			t.Errorf("%x is taken for %x, which is sent as %x (%v)", came, data, again, err)
		}
	})
}
