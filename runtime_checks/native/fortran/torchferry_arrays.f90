! Arrays of a Fortran program as the library takes them: memory, dtype, shape and strides, without a copy.
module torchferry_arrays
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  use torchferry_c
  implicit none
  private

  public :: tf_array, tf_view, c_described

  ! Dimensions in Fortran's order, strides in elements.
  type :: tf_array
    private
    type(c_ptr) :: data = c_null_ptr
    integer(c_int32_t) :: dtype = 0
    integer, public :: rank = 0
    integer(c_int64_t) :: shape(MAX_RANK) = 0, strides(MAX_RANK) = 0
  end type

  ! Real and integer arrays of rank 0 to 5. The array must have the attribute target and outlive what this returns.
  interface tf_view
    module procedure view_r64_0, view_r64_1, view_r64_2, view_r64_3, view_r64_4, view_r64_5, &
      view_r32_0, view_r32_1, view_r32_2, view_r32_3, view_r32_4, view_r32_5, &
      view_i64_0, view_i64_1, view_i64_2, view_i64_3, view_i64_4, view_i64_5, &
      view_i32_0, view_i32_1, view_i32_2, view_i32_3, view_i32_4, view_i32_5
  end interface

contains

  ! The descriptor of the C interface: batch dimensions first, in reversed order, so that the slowest comes first as
  ! it does in memory; then the variable's own dimensions in their own order. sizes holds its shape and strides.
  function c_described(array, own, sizes) result(tensor)
    type(tf_array), intent(in) :: array
    integer, intent(in) :: own
    integer(c_int64_t), target, intent(inout) :: sizes(:, :)
    type(c_tensor) :: tensor
    integer :: batch, i, from
    batch = max(array%rank - own, 0)
    do i = 1, array%rank
      from = merge(array%rank + 1 - i, i - batch, i <= batch)
      sizes(i, 1) = array%shape(from)
      sizes(i, 2) = array%strides(from)
    end do
    tensor = c_tensor(array%data, array%dtype, int(array%rank, c_int32_t), c_loc(sizes(1, 1)), c_loc(sizes(1, 2)), &
                      c_device(TF_CPU, 0))
  end function

  ! The strides follow from where the second element of each dimension lies, so that array sections need no copy.
  function described(dtype, width, shape, first, second) result(array)
    integer(c_int32_t), intent(in) :: dtype
    integer, intent(in) :: width
    integer(c_int64_t), intent(in) :: shape(:)
    type(c_ptr), intent(in) :: first, second(:)
    type(tf_array) :: array
    integer :: i
    array%data = first
    array%dtype = dtype
    array%rank = size(shape)
    array%shape(:size(shape)) = shape
    if (.not. c_associated(first)) return
    do i = 1, size(shape)
      array%strides(i) = (transfer(second(i), 0_c_intptr_t) - transfer(first, 0_c_intptr_t)) / width
    end do
  end function

  ! Each asks the library for its version, which also keeps gfortran from finding these functions pure: it would then
  ! conclude that no address of an array leaves them, and that no later call can change the array.

  function view_r64_0(x) result(array)
    real(real64), target, intent(in) :: x
    type(tf_array) :: array
    if (c_tf_abi_version() == TF_ABI_VERSION) array = described(TF_FLOAT64, 8, [integer(c_int64_t) ::], c_loc(x), [c_ptr ::])
  end function

  function view_r64_1(x) result(array)
    real(real64), target, intent(in) :: x(:)
    type(tf_array) :: array
    type(c_ptr) :: first, second(1)
    first = c_null_ptr
    second = c_null_ptr
    if (size(x) > 0 .and. c_tf_abi_version() == TF_ABI_VERSION) then
      first = c_loc(x(1))
      second(1) = c_loc(x(min(2, size(x, 1))))
    end if
    array = described(TF_FLOAT64, 8, shape(x, kind=c_int64_t), first, second)
  end function

  function view_r64_2(x) result(array)
    real(real64), target, intent(in) :: x(:, :)
    type(tf_array) :: array
    type(c_ptr) :: first, second(2)
    first = c_null_ptr
    second = c_null_ptr
    if (size(x) > 0 .and. c_tf_abi_version() == TF_ABI_VERSION) then
      first = c_loc(x(1, 1))
      second(1) = c_loc(x(min(2, size(x, 1)), 1))
      second(2) = c_loc(x(1, min(2, size(x, 2))))
    end if
    array = described(TF_FLOAT64, 8, shape(x, kind=c_int64_t), first, second)
  end function

  function view_r64_3(x) result(array)
    real(real64), target, intent(in) :: x(:, :, :)
    type(tf_array) :: array
    type(c_ptr) :: first, second(3)
    first = c_null_ptr
    second = c_null_ptr
    if (size(x) > 0 .and. c_tf_abi_version() == TF_ABI_VERSION) then
      first = c_loc(x(1, 1, 1))
      second(1) = c_loc(x(min(2, size(x, 1)), 1, 1))
      second(2) = c_loc(x(1, min(2, size(x, 2)), 1))
      second(3) = c_loc(x(1, 1, min(2, size(x, 3))))
    end if
    array = described(TF_FLOAT64, 8, shape(x, kind=c_int64_t), first, second)
  end function

  function view_r64_4(x) result(array)
    real(real64), target, intent(in) :: x(:, :, :, :)
    type(tf_array) :: array
    type(c_ptr) :: first, second(4)
    first = c_null_ptr
    second = c_null_ptr
    if (size(x) > 0 .and. c_tf_abi_version() == TF_ABI_VERSION) then
      first = c_loc(x(1, 1, 1, 1))
      second(1) = c_loc(x(min(2, size(x, 1)), 1, 1, 1))
      second(2) = c_loc(x(1, min(2, size(x, 2)), 1, 1))
      second(3) = c_loc(x(1, 1, min(2, size(x, 3)), 1))
      second(4) = c_loc(x(1, 1, 1, min(2, size(x, 4))))
    end if
    array = described(TF_FLOAT64, 8, shape(x, kind=c_int64_t), first, second)
  end function

  function view_r64_5(x) result(array)
    real(real64), target, intent(in) :: x(:, :, :, :, :)
    type(tf_array) :: array
    type(c_ptr) :: first, second(5)
    first = c_null_ptr
    second = c_null_ptr
    if (size(x) > 0 .and. c_tf_abi_version() == TF_ABI_VERSION) then
      first = c_loc(x(1, 1, 1, 1, 1))
      second(1) = c_loc(x(min(2, size(x, 1)), 1, 1, 1, 1))
      second(2) = c_loc(x(1, min(2, size(x, 2)), 1, 1, 1))
      second(3) = c_loc(x(1, 1, min(2, size(x, 3)), 1, 1))
      second(4) = c_loc(x(1, 1, 1, min(2, size(x, 4)), 1))
      second(5) = c_loc(x(1, 1, 1, 1, min(2, size(x, 5))))
    end if
    array = described(TF_FLOAT64, 8, shape(x, kind=c_int64_t), first, second)
  end function

  function view_r32_0(x) result(array)
    real(real32), target, intent(in) :: x
    type(tf_array) :: array
    if (c_tf_abi_version() == TF_ABI_VERSION) array = described(TF_FLOAT32, 4, [integer(c_int64_t) ::], c_loc(x), [c_ptr ::])
  end function

  function view_r32_1(x) result(array)
    real(real32), target, intent(in) :: x(:)
    type(tf_array) :: array
    type(c_ptr) :: first, second(1)
    first = c_null_ptr
    second = c_null_ptr
    if (size(x) > 0 .and. c_tf_abi_version() == TF_ABI_VERSION) then
      first = c_loc(x(1))
      second(1) = c_loc(x(min(2, size(x, 1))))
    end if
    array = described(TF_FLOAT32, 4, shape(x, kind=c_int64_t), first, second)
  end function

  function view_r32_2(x) result(array)
    real(real32), target, intent(in) :: x(:, :)
    type(tf_array) :: array
    type(c_ptr) :: first, second(2)
    first = c_null_ptr
    second = c_null_ptr
    if (size(x) > 0 .and. c_tf_abi_version() == TF_ABI_VERSION) then
      first = c_loc(x(1, 1))
      second(1) = c_loc(x(min(2, size(x, 1)), 1))
      second(2) = c_loc(x(1, min(2, size(x, 2))))
    end if
    array = described(TF_FLOAT32, 4, shape(x, kind=c_int64_t), first, second)
  end function

  function view_r32_3(x) result(array)
    real(real32), target, intent(in) :: x(:, :, :)
    type(tf_array) :: array
    type(c_ptr) :: first, second(3)
    first = c_null_ptr
    second = c_null_ptr
    if (size(x) > 0 .and. c_tf_abi_version() == TF_ABI_VERSION) then
      first = c_loc(x(1, 1, 1))
      second(1) = c_loc(x(min(2, size(x, 1)), 1, 1))
      second(2) = c_loc(x(1, min(2, size(x, 2)), 1))
      second(3) = c_loc(x(1, 1, min(2, size(x, 3))))
    end if
    array = described(TF_FLOAT32, 4, shape(x, kind=c_int64_t), first, second)
  end function

  function view_r32_4(x) result(array)
    real(real32), target, intent(in) :: x(:, :, :, :)
    type(tf_array) :: array
    type(c_ptr) :: first, second(4)
    first = c_null_ptr
    second = c_null_ptr
    if (size(x) > 0 .and. c_tf_abi_version() == TF_ABI_VERSION) then
      first = c_loc(x(1, 1, 1, 1))
      second(1) = c_loc(x(min(2, size(x, 1)), 1, 1, 1))
      second(2) = c_loc(x(1, min(2, size(x, 2)), 1, 1))
      second(3) = c_loc(x(1, 1, min(2, size(x, 3)), 1))
      second(4) = c_loc(x(1, 1, 1, min(2, size(x, 4))))
    end if
    array = described(TF_FLOAT32, 4, shape(x, kind=c_int64_t), first, second)
  end function

  function view_r32_5(x) result(array)
    real(real32), target, intent(in) :: x(:, :, :, :, :)
    type(tf_array) :: array
    type(c_ptr) :: first, second(5)
    first = c_null_ptr
    second = c_null_ptr
    if (size(x) > 0 .and. c_tf_abi_version() == TF_ABI_VERSION) then
      first = c_loc(x(1, 1, 1, 1, 1))
      second(1) = c_loc(x(min(2, size(x, 1)), 1, 1, 1, 1))
      second(2) = c_loc(x(1, min(2, size(x, 2)), 1, 1, 1))
      second(3) = c_loc(x(1, 1, min(2, size(x, 3)), 1, 1))
      second(4) = c_loc(x(1, 1, 1, min(2, size(x, 4)), 1))
      second(5) = c_loc(x(1, 1, 1, 1, min(2, size(x, 5))))
    end if
    array = described(TF_FLOAT32, 4, shape(x, kind=c_int64_t), first, second)
  end function

  function view_i64_0(x) result(array)
    integer(int64), target, intent(in) :: x
    type(tf_array) :: array
    if (c_tf_abi_version() == TF_ABI_VERSION) array = described(TF_INT64, 8, [integer(c_int64_t) ::], c_loc(x), [c_ptr ::])
  end function

  function view_i64_1(x) result(array)
    integer(int64), target, intent(in) :: x(:)
    type(tf_array) :: array
    type(c_ptr) :: first, second(1)
    first = c_null_ptr
    second = c_null_ptr
    if (size(x) > 0 .and. c_tf_abi_version() == TF_ABI_VERSION) then
      first = c_loc(x(1))
      second(1) = c_loc(x(min(2, size(x, 1))))
    end if
    array = described(TF_INT64, 8, shape(x, kind=c_int64_t), first, second)
  end function

  function view_i64_2(x) result(array)
    integer(int64), target, intent(in) :: x(:, :)
    type(tf_array) :: array
    type(c_ptr) :: first, second(2)
    first = c_null_ptr
    second = c_null_ptr
    if (size(x) > 0 .and. c_tf_abi_version() == TF_ABI_VERSION) then
      first = c_loc(x(1, 1))
      second(1) = c_loc(x(min(2, size(x, 1)), 1))
      second(2) = c_loc(x(1, min(2, size(x, 2))))
    end if
    array = described(TF_INT64, 8, shape(x, kind=c_int64_t), first, second)
  end function

  function view_i64_3(x) result(array)
    integer(int64), target, intent(in) :: x(:, :, :)
    type(tf_array) :: array
    type(c_ptr) :: first, second(3)
    first = c_null_ptr
    second = c_null_ptr
    if (size(x) > 0 .and. c_tf_abi_version() == TF_ABI_VERSION) then
      first = c_loc(x(1, 1, 1))
      second(1) = c_loc(x(min(2, size(x, 1)), 1, 1))
      second(2) = c_loc(x(1, min(2, size(x, 2)), 1))
      second(3) = c_loc(x(1, 1, min(2, size(x, 3))))
    end if
    array = described(TF_INT64, 8, shape(x, kind=c_int64_t), first, second)
  end function

  function view_i64_4(x) result(array)
    integer(int64), target, intent(in) :: x(:, :, :, :)
    type(tf_array) :: array
    type(c_ptr) :: first, second(4)
    first = c_null_ptr
    second = c_null_ptr
    if (size(x) > 0 .and. c_tf_abi_version() == TF_ABI_VERSION) then
      first = c_loc(x(1, 1, 1, 1))
      second(1) = c_loc(x(min(2, size(x, 1)), 1, 1, 1))
      second(2) = c_loc(x(1, min(2, size(x, 2)), 1, 1))
      second(3) = c_loc(x(1, 1, min(2, size(x, 3)), 1))
      second(4) = c_loc(x(1, 1, 1, min(2, size(x, 4))))
    end if
    array = described(TF_INT64, 8, shape(x, kind=c_int64_t), first, second)
  end function

  function view_i64_5(x) result(array)
    integer(int64), target, intent(in) :: x(:, :, :, :, :)
    type(tf_array) :: array
    type(c_ptr) :: first, second(5)
    first = c_null_ptr
    second = c_null_ptr
    if (size(x) > 0 .and. c_tf_abi_version() == TF_ABI_VERSION) then
      first = c_loc(x(1, 1, 1, 1, 1))
      second(1) = c_loc(x(min(2, size(x, 1)), 1, 1, 1, 1))
      second(2) = c_loc(x(1, min(2, size(x, 2)), 1, 1, 1))
      second(3) = c_loc(x(1, 1, min(2, size(x, 3)), 1, 1))
      second(4) = c_loc(x(1, 1, 1, min(2, size(x, 4)), 1))
      second(5) = c_loc(x(1, 1, 1, 1, min(2, size(x, 5))))
    end if
    array = described(TF_INT64, 8, shape(x, kind=c_int64_t), first, second)
  end function

  function view_i32_0(x) result(array)
    integer(int32), target, intent(in) :: x
    type(tf_array) :: array
    if (c_tf_abi_version() == TF_ABI_VERSION) array = described(TF_INT32, 4, [integer(c_int64_t) ::], c_loc(x), [c_ptr ::])
  end function

  function view_i32_1(x) result(array)
    integer(int32), target, intent(in) :: x(:)
    type(tf_array) :: array
    type(c_ptr) :: first, second(1)
    first = c_null_ptr
    second = c_null_ptr
    if (size(x) > 0 .and. c_tf_abi_version() == TF_ABI_VERSION) then
      first = c_loc(x(1))
      second(1) = c_loc(x(min(2, size(x, 1))))
    end if
    array = described(TF_INT32, 4, shape(x, kind=c_int64_t), first, second)
  end function

  function view_i32_2(x) result(array)
    integer(int32), target, intent(in) :: x(:, :)
    type(tf_array) :: array
    type(c_ptr) :: first, second(2)
    first = c_null_ptr
    second = c_null_ptr
    if (size(x) > 0 .and. c_tf_abi_version() == TF_ABI_VERSION) then
      first = c_loc(x(1, 1))
      second(1) = c_loc(x(min(2, size(x, 1)), 1))
      second(2) = c_loc(x(1, min(2, size(x, 2))))
    end if
    array = described(TF_INT32, 4, shape(x, kind=c_int64_t), first, second)
  end function

  function view_i32_3(x) result(array)
    integer(int32), target, intent(in) :: x(:, :, :)
    type(tf_array) :: array
    type(c_ptr) :: first, second(3)
    first = c_null_ptr
    second = c_null_ptr
    if (size(x) > 0 .and. c_tf_abi_version() == TF_ABI_VERSION) then
      first = c_loc(x(1, 1, 1))
      second(1) = c_loc(x(min(2, size(x, 1)), 1, 1))
      second(2) = c_loc(x(1, min(2, size(x, 2)), 1))
      second(3) = c_loc(x(1, 1, min(2, size(x, 3))))
    end if
    array = described(TF_INT32, 4, shape(x, kind=c_int64_t), first, second)
  end function

  function view_i32_4(x) result(array)
    integer(int32), target, intent(in) :: x(:, :, :, :)
    type(tf_array) :: array
    type(c_ptr) :: first, second(4)
    first = c_null_ptr
    second = c_null_ptr
    if (size(x) > 0 .and. c_tf_abi_version() == TF_ABI_VERSION) then
      first = c_loc(x(1, 1, 1, 1))
      second(1) = c_loc(x(min(2, size(x, 1)), 1, 1, 1))
      second(2) = c_loc(x(1, min(2, size(x, 2)), 1, 1))
      second(3) = c_loc(x(1, 1, min(2, size(x, 3)), 1))
      second(4) = c_loc(x(1, 1, 1, min(2, size(x, 4))))
    end if
    array = described(TF_INT32, 4, shape(x, kind=c_int64_t), first, second)
  end function

  function view_i32_5(x) result(array)
    integer(int32), target, intent(in) :: x(:, :, :, :, :)
    type(tf_array) :: array
    type(c_ptr) :: first, second(5)
    first = c_null_ptr
    second = c_null_ptr
    if (size(x) > 0 .and. c_tf_abi_version() == TF_ABI_VERSION) then
      first = c_loc(x(1, 1, 1, 1, 1))
      second(1) = c_loc(x(min(2, size(x, 1)), 1, 1, 1, 1))
      second(2) = c_loc(x(1, min(2, size(x, 2)), 1, 1, 1))
      second(3) = c_loc(x(1, 1, min(2, size(x, 3)), 1, 1))
      second(4) = c_loc(x(1, 1, 1, min(2, size(x, 4)), 1))
      second(5) = c_loc(x(1, 1, 1, 1, min(2, size(x, 5))))
    end if
    array = described(TF_INT32, 4, shape(x, kind=c_int64_t), first, second)
  end function

end module torchferry_arrays
