package convention

import (
	"fmt"
	"slices"
)

// ofMetadata are names that may stand among the options of a file and are read from its metadata.
var ofMetadata = map[string]bool{"token_loss_includes_kl": true, "scores_shaped": true, "masked_fill": true, "scalars_scope": true, "dlogp_scale": true}

// Assign returns the set of one assignment, name = text: of an option, whose origin is origin, or of a fact of the run (see [FactNames]), whose
// text is as in a line of a file of options. Errors: a name that is neither, with the nearest one, and a value that the name cannot have.
func Assign(name, text, origin string) (*Set, error) {
	if o, err := Find(name); err == nil {
		v, err := o.Parse(text)
		if err != nil {
			return nil, err
		}
		return (&Set{}).With(name, v, origin), nil
	}
	for _, t := range natives() {
		if _, theirs := t.find(name); theirs && !known([]*nativeTable{nativeShared()}, name) {
			return nil, fmt.Errorf("%.64s is no option but a name of %s; --config reads a file with framework = %s and %s = %.64s", name, t.name, t.name, name, text)
		}
	}
	if err := onlyNeutral([]NameValue{{name, nil}}); err != nil {
		return nil, err
	}
	if ofMetadata[name] {
		return nil, fmt.Errorf("%s is said in the metadata of the files", name)
	}
	if !slices.Contains(FactNames(), name) {
		return nil, fmt.Errorf("no option %q decides anything", name)
	}
	v, err := lineValue("", text)
	if err != nil {
		return nil, fmt.Errorf("%s: %.64q is no value", name, text)
	}
	d, err := Declare("", "", []NameValue{{name, v}}, origin)
	if err != nil {
		return nil, err
	}
	return d.Set, nil
}
