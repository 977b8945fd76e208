use super::*;

#[test]
fn accumulating_frames_are_counted_by_later_call() {
    let mut account = Account::default();
    account.take();
    account.hold();
    account.hold();
    let first = account.submit();
    assert_eq!(
        (first.consumed, first.accumulating, first.released),
        (1, 2, 0)
    );
    account.hold();
    account.release_accumulated();
    account.hold();
    let second = account.submit();
    assert_eq!(
        (second.consumed, second.accumulating, second.released),
        (1, 1, 2)
    );
    account.fail();
    account.drop_accumulated();
    let third = account.submit();
    assert_eq!((third.consumed, third.failed, third.dropped), (0, 1, 1));
}
