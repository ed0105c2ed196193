package bug

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Symptom is what a log shows of a bug: what is seen, the cause that the guide of its program gives, and the one that is more likely.
type Symptom struct {
	ID       string
	Rows     []string // codes that it stands for beside its id
	Title    string   // what is seen
	Cause    string   // as the source document has it
	Better   string   // what is more likely, or the rest of it
	Fix      string
	Dump     string   // which step to dump, and what of it
	Explains []string // symptoms that follow from it
}

//go:embed symptoms.txt
var symptomText string

var symptoms = sync.OnceValue(func() []*Symptom {
	list, err := parseSymptoms(symptomText)
	if err != nil {
		panic("bug: " + err.Error())
	}
	return list
})

// Symptoms returns the symptoms of logs. The slice is shared and must not be changed.
func Symptoms() []*Symptom { return symptoms() }

// FindSymptom returns the symptom of that id, nil if there is none.
func FindSymptom(id string) *Symptom {
	if i := slices.IndexFunc(symptoms(), func(s *Symptom) bool { return strings.EqualFold(s.ID, id) }); i >= 0 {
		return symptoms()[i]
	}
	return nil
}

// MustFindSymptom is [FindSymptom] for ids in source text: it panics where the registry lacks the symptom.
func MustFindSymptom(id string) *Symptom {
	if s := FindSymptom(id); s != nil {
		return s
	}
	panic(fmt.Sprintf("bug: %q is not in symptoms.txt", id))
}

// parseSymptoms reads symptoms.txt: an id in the first column, its fields below it behind two spaces, # for comments. – is an empty
// field.
func parseSymptoms(text string) ([]*Symptom, error) {
	var list []*Symptom
	for n, line := range strings.Split(text, "\n") {
		switch {
		case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#"):
			continue
		case !strings.HasPrefix(line, " "):
			list = append(list, &Symptom{ID: line})
			continue
		case len(list) == 0:
			return nil, fmt.Errorf("symptoms.txt:%d: a field before the first id", n+1)
		}
		s := list[len(list)-1]
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		value = strings.TrimSpace(value)
		field := map[string]*string{"title": &s.Title, "cause": &s.Cause, "better": &s.Better, "fix": &s.Fix, "dump": &s.Dump}[key]
		switch {
		case key == "rows":
			s.Rows = strings.Fields(value)
		case key == "explains":
			s.Explains = strings.Fields(value)
		case field == nil:
			return nil, fmt.Errorf("symptoms.txt:%d: %s has a field %q", n+1, s.ID, key)
		case *field != "" || value == "":
			return nil, fmt.Errorf("symptoms.txt:%d: %s of %s is empty, or there twice", n+1, key, s.ID)
		case value != "–":
			*field = value
		}
	}
	return list, nil
}
