package golden

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"plumbline/verify/check"
)

// maxListed is how many findings of one kind a check lists; it counts the rest.
const maxListed = 20

// ManifestCheck compares the files of the folder with its manifest.
var ManifestCheck = &check.Check[*Set]{
	Name: "golden/manifest",
	Doc: `every file is listed and unchanged

Compares the sha256 of every file of the folder with MANIFEST.json (or the key sha256 of manifest.json): none changed,
none missing, none beside them. A folder without a manifest is judged all the same, with a warning.`,
	Source: "house rule 5: a golden names producer, versions, seed and sha256, and code under test never writes it",
	Fix:    "take the files from their producer again; goldens are not edited",
	Run:    runManifest,
}

func runManifest(s *Set) ([]check.Result, error) {
	if s.Manifest == nil {
		return []check.Result{{Subject: s.where(), Verdict: check.Warn,
			Reason: "no MANIFEST.json and no manifest.json: nothing says that the files are those of their producer",
			Fix:    "write the sha256 of every file to MANIFEST.json where the files are made"}}, nil
	}
	var bad []check.Result
	fail := func(name, reason string) {
		bad = append(bad, check.Result{Subject: short(name), Verdict: check.Fail, Reason: reason, Repeat: s.repeatAll("golden/manifest")})
	}
	there := map[string]bool{}
	same := 0
	for _, f := range s.Files {
		want, listed := s.Manifest.SHA256[f.Name]
		if slices.Contains(s.Manifest.Files, f.Name) && !listed {
			continue
		}
		there[f.Name] = true
		switch {
		case !listed:
			fail(f.Name, "is not in "+s.Manifest.Name)
			continue
		case f.Odd != "":
			fail(f.Name, "is "+f.Odd)
			continue
		}
		got := f.SHA256
		if got == "" {
			var err error
			if got, err = s.sum(f.Name); err != nil {
				return nil, err
			}
		}
		if got != want {
			fail(f.Name, fmt.Sprintf("has sha256 %s, %s says %s", got, s.Manifest.Name, want))
			continue
		}
		same++
	}
	for _, name := range slices.Sorted(maps.Keys(s.Manifest.SHA256)) {
		if !there[name] {
			fail(name, "is in "+s.Manifest.Name+", but not in the folder")
		}
	}
	if same == 0 && len(bad) == 0 {
		return []check.Result{{Subject: s.where(), Verdict: check.Fail, Reason: s.Manifest.Name + " lists no file", Repeat: s.repeatAll("golden/manifest")}}, nil
	}
	results := []check.Result{}
	if same > 0 {
		results = append(results, check.Result{Subject: fmt.Sprintf("%d files", same), Verdict: check.Pass, Compared: same,
			Reason: "their sha256 are those of " + s.Manifest.Name})
	}
	return append(results, capped(bad, "files differ from the manifest")...), nil
}

// where names the folder.
func (s *Set) where() string {
	return cmp.Or(s.Dir, "golden, in the program")
}

// capped keeps the first findings of one kind and puts one in place of the rest, which says what they are.
func capped(list []check.Result, what string) []check.Result {
	if len(list) <= maxListed {
		return list
	}
	rest := len(list) - maxListed
	more, entries := list[maxListed], 0.0
	for _, r := range list[maxListed:] {
		entries += fact(r, "entries")
	}
	return append(list[:maxListed:maxListed], check.Result{Facts: []check.Fact{{Name: "entries", Value: entries}},
		Subject: fmt.Sprintf("%d more", rest), Verdict: more.Verdict,
		Reason: fmt.Sprintf("%d more %s, of %d", rest, what, len(list)), Repeat: more.Repeat})
}

// fact returns a named number of a result, 0 if it has none.
func fact(r check.Result, name string) float64 {
	for _, f := range r.Facts {
		if f.Name == name {
			return f.Value
		}
	}
	return 0
}
