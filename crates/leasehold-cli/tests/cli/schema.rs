//! The SQL for an operator.

use super::place::Place;

#[test]
fn the_sql_is_printed_for_the_schema_that_was_asked_for() {
    let place = Place::new();
    let plain = place.run(&["schema", "postgres"]);
    assert_eq!(plain.code, 0);
    assert!(plain.stdout.contains("CREATE SCHEMA leasehold;"));
    assert!(plain.stdout.contains("FUNCTION leasehold.acquire("));
    let other = place.run(&["schema", "postgres", "--schema", "My_locks"]);
    assert!(other.stdout.contains("CREATE SCHEMA \"My_locks\";"));
    assert!(other.stdout.contains("to_regnamespace('\"My_locks\"')"));
    assert!(other.stdout.contains("FUNCTION \"My_locks\".acquire("));
    assert!(!other.stdout.contains("leasehold."));
}

#[test]
fn a_schema_that_would_need_escapes_is_refused() {
    let place = Place::new();
    for bad in ["a; DROP TABLE x", "a\"b", "", "a$$b"] {
        let refused = place.run(&["schema", "postgres", "--schema", bad]);
        assert_eq!(refused.code, 64, "{bad:?}");
        assert_eq!(refused.stdout, "");
    }
}
