package principal

import (
	"bufio"
	"cmp"
	"io"
	"os"
	"strings"
)

// DefaultRealm is what Kerberos's configuration names so, which is the file that
// KRB5_CONFIG names, or /etc/krb5.conf. It is empty if nothing does.
func DefaultRealm() string {
	f, err := os.Open(cmp.Or(os.Getenv("KRB5_CONFIG"), "/etc/krb5.conf"))
	if err != nil {
		return ""
	}
	defer f.Close()
	return realmIn(f)
}

// realmIn reads a configuration: default_realm in the section libdefaults.
func realmIn(r io.Reader) string {
	in, section := bufio.NewScanner(r), ""
	for in.Scan() {
		line := strings.TrimSpace(in.Text())
		if name, ok := strings.CutPrefix(line, "["); ok {
			section, _, _ = strings.Cut(name, "]")
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if ok && section == "libdefaults" && strings.TrimSpace(name) == "default_realm" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
