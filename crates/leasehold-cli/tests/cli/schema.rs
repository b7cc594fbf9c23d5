//! The SQL for an operator.

use super::sandbox::Sandbox;

#[test]
fn sql_is_printed_for_the_given_schema() {
    let sandbox = Sandbox::new();
    let plain = sandbox.run(&["schema", "postgres"]);
    assert_eq!(plain.code, 0);
    assert!(plain.stdout.contains("CREATE SCHEMA leasehold;"));
    assert!(plain.stdout.contains("FUNCTION leasehold.acquire("));
    let other = sandbox.run(&["schema", "postgres", "--schema", "My_locks"]);
    assert!(other.stdout.contains("CREATE SCHEMA \"My_locks\";"));
    assert!(other.stdout.contains("to_regnamespace('\"My_locks\"')"));
    assert!(other.stdout.contains("FUNCTION \"My_locks\".acquire("));
    assert!(!other.stdout.contains("leasehold."));
}

#[test]
fn a_schema_that_would_need_escapes_is_refused() {
    let sandbox = Sandbox::new();
    for bad in ["a; DROP TABLE x", "a\"b", "", "a$$b"] {
        let refused = sandbox.run(&["schema", "postgres", "--schema", bad]);
        assert_eq!(refused.code, 64, "{bad:?}");
        assert_eq!(refused.stdout, "");
    }
}

#[test]
fn commands_for_dynamodb_are_printed_for_the_given_table() {
    let sandbox = Sandbox::new();
    let plain = sandbox.run(&["schema", "dynamodb"]);
    assert_eq!(plain.code, 0);
    assert!(plain.stdout.contains("create-table --table-name locks "));
    let other = sandbox.run(&["schema", "dynamodb", "--table", "my.locks"]);
    assert!(other.stdout.contains("--table-name my.locks "));
    for bad in ["a; rm -rf", "$(x)", "x", "locks?region=a"] {
        let refused = sandbox.run(&["schema", "dynamodb", "--table", bad]);
        assert_eq!((refused.code, refused.stdout.as_str()), (64, ""), "{bad}");
    }
}
