package conf

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// Bounds of what one file may include.
const (
	maxIncludeDepth = 20
	maxIncluded     = 1000 // files
)

// reading is what one file and those that it includes are read by.
type reading struct {
	p     *Properties
	files int
}

// property is one of them, as Hadoop takes it: by elements or by attributes.
type property struct {
	Name      string  `xml:"name"`
	Value     *string `xml:"value"`
	Final     string  `xml:"final"`
	AttrName  string  `xml:"name,attr"`
	AttrValue *string `xml:"value,attr"`
	AttrFinal string  `xml:"final,attr"`
}

func (p *Properties) add(path string) error {
	r := &reading{p: p}
	return r.file(path, 0)
}

// file reads a file. Only for one that nothing includes the error may be [os.ErrNotExist].
func (r *reading) file(path string, depth int) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	d := xml.NewDecoder(io.LimitReader(f, maxFile))
	root, err := firstElement(d)
	if err == nil && root != "configuration" {
		err = fmt.Errorf("expected element type <configuration> but have <%s>", root)
	}
	if err == nil {
		err = r.elements(d, path, depth)
	}
	if err == nil {
		return nil
	}
	var named *fileError
	if errors.As(err, &named) {
		return err
	}
	return &fileError{path, err}
}

// fileError is an error with the file that it is about.
type fileError struct {
	path string
	err  error
}

func (e *fileError) Error() string {
	return fmt.Sprintf("configuration of Hadoop: %s: %v", e.path, e.err)
}
func (e *fileError) Unwrap() error { return e.err }

func firstElement(d *xml.Decoder) (name string, err error) {
	for {
		t, err := d.Token()
		if err != nil {
			return "", err
		}
		if start, ok := t.(xml.StartElement); ok {
			return start.Name.Local, nil
		}
	}
}

// elements takes the properties up to the end of the element that has begun.
func (r *reading) elements(d *xml.Decoder, path string, depth int) error {
	for {
		t, err := d.Token()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		switch t := t.(type) {
		case xml.EndElement:
			return nil
		case xml.StartElement:
			switch t.Name.Local {
			case "property":
				err = r.property(d, &t, path)
			case "include":
				err = r.include(d, &t, path, depth)
			case "configuration":
				err = r.elements(d, path, depth)
			default:
				err = d.Skip()
			}
			if err != nil {
				return err
			}
		}
	}
}

func (r *reading) property(d *xml.Decoder, start *xml.StartElement, path string) error {
	var read property
	if err := d.DecodeElement(&read, start); err != nil {
		return err
	}
	if read.Name == "" {
		read.Name = read.AttrName
	}
	if read.Value == nil {
		read.Value = read.AttrValue
	}
	if read.Final == "" {
		read.Final = read.AttrFinal
	}
	name := Current(strings.TrimSpace(read.Name))
	if name == "" || read.Value == nil || r.p.values[name].final {
		return nil
	}
	r.p.values[name] = value{strings.TrimSpace(*read.Value), path, strings.TrimSpace(read.Final) == "true"}
	return nil
}

// include reads another file in place of an element of XInclude's, or what its fallback has
// if there is no such file. It reads to the end of the element.
func (r *reading) include(d *xml.Decoder, start *xml.StartElement, path string, depth int) error {
	var href string
	for _, a := range start.Attr {
		if a.Name.Local == "href" {
			href = a.Value
		}
	}
	if href == "" {
		return d.Skip() // Hadoop ignores it
	}
	target, err := included(href, path)
	if err != nil {
		return err
	}
	if _, err := os.Stat(target); err != nil {
		return r.fallback(d, target, path, depth, err)
	}
	switch r.files++; {
	case depth == maxIncludeDepth:
		return fmt.Errorf("include %s: more than %d files inside each other", target, maxIncludeDepth)
	case r.files > maxIncluded:
		return fmt.Errorf("include %s: more than %d files in all", target, maxIncluded)
	}
	if err := r.file(target, depth+1); err != nil {
		return err
	}
	return d.Skip()
}

// included is the path of a file that another includes, relative to that one.
func included(href, from string) (string, error) {
	if u, err := url.Parse(href); err == nil && u.Scheme != "" {
		if u.Scheme != "file" {
			return "", fmt.Errorf("include %s: only files can be included here", href)
		}
		href = u.Path
	}
	if filepath.IsAbs(href) {
		return href, nil
	}
	return filepath.Join(filepath.Dir(from), href), nil
}

// fallback takes what stands in an element in place of a file that is not there.
func (r *reading) fallback(d *xml.Decoder, target, path string, depth int, missing error) error {
	found := false
	for {
		t, err := d.Token()
		if err != nil {
			return err
		}
		switch t := t.(type) {
		case xml.EndElement:
			if !found {
				// The file that includes is there, so that this is no [os.ErrNotExist].
				return fmt.Errorf("include %s: %v, and there is no fallback", target, missing) //nolint:errorlint // see above
			}
			return nil
		case xml.StartElement:
			if t.Name.Local != "fallback" {
				err = d.Skip()
			} else {
				found = true
				err = r.elements(d, path, depth)
			}
			if err != nil {
				return err
			}
		}
	}
}
