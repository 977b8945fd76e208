//! Addresses of this machine: which network interface has one.

use std::io;
use std::net::Ipv4Addr;

/// An interface with an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Its MAC address; zeroes where it has none, as the loopback interface.
    pub mac: [u8; 6],
}

/// The interface that has the IPv4 address `address`; `None` where none has.
pub fn interface_of(address: Ipv4Addr) -> io::Result<Option<Interface>> {
    let Some(name) = name_of(address)? else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/address"))?;
    let mut bytes = text
        .trim()
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).unwrap_or(0));
    let mac = std::array::from_fn(|_| bytes.next().unwrap_or(0));
    Ok(Some(Interface { name, mac }))
}

fn name_of(address: Ipv4Addr) -> io::Result<Option<String>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call writes one pointer to `first`, which lives for the call. On success it is the head of a list that
    // is ours until it is freed below, once.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut name = None;
    let mut next = first;
    while !next.is_null() && name.is_none() {
        // SAFETY: `next` is an element of the list, which is not freed yet; nobody writes to it.
        let element = unsafe { &*next };
        let found = element.ifa_addr;
        // SAFETY: an address that is there begins with its family, whatever it is.
        if !found.is_null() && i32::from(unsafe { (*found).sa_family }) == libc::AF_INET {
            // SAFETY: of this family it is a `sockaddr_in`; read without asking for its alignment.
            let found: libc::sockaddr_in =
                unsafe { found.cast::<libc::sockaddr_in>().read_unaligned() };
            if Ipv4Addr::from_bits(u32::from_be(found.sin_addr.s_addr)) == address {
                // SAFETY: an element's name is a string that ends with zero and lives as long as the list.
                let text = unsafe { std::ffi::CStr::from_ptr(element.ifa_name) };
                // An address with a label is listed as `eth0:1`.
                let text = text.to_string_lossy();
                name = text.split(':').next().map(str::to_owned);
            }
        }
        next = element.ifa_next;
    }
    // SAFETY: `first` is the head that `getifaddrs` gave, freed here only; nothing that points into it is kept.
    unsafe { libc::freeifaddrs(first) };
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_its_address_and_nobody_a_strangers() {
        let loopback = interface_of(Ipv4Addr::LOCALHOST).unwrap().unwrap();
        assert_eq!((&loopback.name[..], loopback.mac), ("lo", [0; 6]));
        assert_eq!(interface_of(Ipv4Addr::new(192, 0, 2, 1)).unwrap(), None);
    }
}
