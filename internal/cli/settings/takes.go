package settings

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Check returns an error with a line for each value that Setting.Takes excludes.
func (t Table) Check(from Sources) error {
	var errs []error
	for _, s := range t {
		if s.Takes == "" {
			continue
		}
		if err := s.check(); err != nil {
			errs = append(errs, from.Complain(s.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (s Setting) check() error {
	value, shown, parse := int64(0), "", parseSize
	switch p := s.Into.(type) {
	case *string:
		if !slices.Contains(strings.Split(strings.Replace(s.Takes, " or ", ", ", 1), ", "), *p) {
			return fmt.Errorf("%q is not known; use %s", *p, s.Takes)
		}
		return nil
	case *int:
		value, shown = int64(*p), strconv.Itoa(*p)
	case *int64:
		value, shown = *p, strconv.FormatInt(*p, 10)
	case *time.Duration:
		value, shown = int64(*p), p.String()
		parse = func(text string) (int64, error) { d, err := Duration(text); return int64(d), err }
	}
	first, last, _ := strings.Cut(s.Takes, " to ")
	first, _, _ = strings.Cut(first, " ")
	last, _, zero := strings.Cut(last, ", or 0")
	last, _, _ = strings.Cut(last, " ")
	least, err := parse(first)
	if err != nil {
		return err
	}
	most, err := parse(last)
	if err == nil && (value < least || value > most) && !(zero && value == 0) {
		err = fmt.Errorf("%s is out of range; use %s", shown, s.Takes)
	}
	return err
}
