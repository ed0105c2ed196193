package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"plumbline/verify/report"
)

// Version is the release; a build from a checkout adds the commit.
const Version = "0.1.0"

type versionInfo struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	Revision string `json:"revision"` // of the checkout it was built from, "" if unknown
	Modified bool   `json:"modified"` // the checkout had changes
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
	Schema   int    `json:"report_schema"`
}

func readVersion(name string) versionInfo {
	v := versionInfo{Name: name, Version: Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, Schema: report.SchemaVersion}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Revision = s.Value
			case "vcs.modified":
				v.Modified = s.Value == "true"
			}
		}
	}
	return v
}

// PrintVersion writes what a program was built from.
func PrintVersion(w io.Writer, name string, asJSON bool) error {
	v := readVersion(name)
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	rev := v.Revision
	if len(rev) > 12 {
		rev = rev[:12]
	}
	if rev != "" {
		rev = " " + rev
	}
	_, err := fmt.Fprintf(w, "%s %s%s (%s %s/%s)\n", v.Name, v.Version, rev, v.Go, v.OS, v.Arch)
	return err
}
