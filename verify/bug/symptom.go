package bug

import _ "embed"

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

var symptoms = newRegistry("symptoms.txt", symptomText, parseSymptoms, func(s *Symptom) string { return s.ID })

// Symptoms returns the symptoms of logs. The slice is shared and must not be changed.
func Symptoms() []*Symptom { return symptoms.all() }

// FindSymptom returns the symptom of that id, nil if there is none.
func FindSymptom(id string) *Symptom { return symptoms.find(id) }

// MustFindSymptom is [FindSymptom] for ids in source text: it panics where the registry lacks the symptom.
func MustFindSymptom(id string) *Symptom { return symptoms.mustFind(id) }

func parseSymptoms(text string) ([]*Symptom, error) {
	return parseEntries("symptoms.txt", text, func(id string) *Symptom { return &Symptom{ID: id} }, func(s *Symptom) (map[string]*string, map[string]*[]string) {
		return map[string]*string{"title": &s.Title, "cause": &s.Cause, "better": &s.Better, "fix": &s.Fix, "dump": &s.Dump},
			map[string]*[]string{"rows": &s.Rows, "explains": &s.Explains}
	})
}
